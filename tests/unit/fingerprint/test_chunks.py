"""Chunks far into a content: the indices go beyond 32 bits, the arithmetic does not notice."""

from __future__ import annotations

import numpy as np
import pytest

from numscope.fingerprint import constants
from numscope.fingerprint.chunks import STEP, Measure, Scratch, raw_chunks
from numscope.fingerprint.constants import CHUNK, SPAN
from numscope.fingerprint.definition import sketch
from numscope.fingerprint.kinds import KINDS


@pytest.mark.parametrize("chunk", [1, 255, 256, 2**15, 2**17 + 3])
def test_a_chunk_beyond_2_31_elements_has_its_own_signs_and_factors(chunk: int) -> None:
    array = np.random.default_rng(chunk).standard_normal(CHUNK).astype(np.float32)
    one = Measure(KINDS["float32"], CHUNK, Scratch())
    one.at = one._hashed = chunk
    one.take(array.view(np.uint8))
    one.finish()
    assert np.allclose(one.sketch, sketch(array, chunk * CHUNK), atol=1e-6 * one.l2)
    word = chunk * CHUNK + np.arange(CHUNK)
    factor = constants.factors()[word % SPAN] * constants.span_factors(word // SPAN)
    assert one.hash == int(np.sum(factor * array.view(np.int32))) % 2**64


def test_strided_arrays_come_in_whole_chunks_and_in_order() -> None:
    array = np.arange(200_003 * 3, dtype=np.int64).reshape(3, -1)
    chunks = [chunk.view(np.int64).copy() for chunk in raw_chunks(array.T, 8)]
    assert [chunk.size for chunk in chunks[:-1]] == [STEP] * (len(chunks) - 1)
    assert (np.concatenate(chunks) == array.T.reshape(-1)).all()
