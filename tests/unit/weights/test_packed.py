"""Packed words: what was packed is unpacked, and what does not fit together is left as it is."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from numscope.weights.matching.packed import unpack
from numscope.weights.matching.quantised import logical
from numscope.weights.sources import open_weights
from tests.integration.packed_weights import PACKS, words


@given(bits=st.sampled_from([2, 3, 4, 8]), rows=st.integers(1, 4), groups=st.integers(1, 4), seed=st.integers(0, 99))
@settings(deadline=None)
def test_numbers_come_back(bits: int, rows: int, groups: int, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 1 << bits, (rows, 32 * groups))
    assert np.array_equal(unpack(words(numbers, bits), bits), numbers)


SHAPES = st.lists(st.integers(0, 5), min_size=0, max_size=3).map(tuple)


@given(kind=st.sampled_from(sorted(PACKS)), which=st.integers(0, 3), shape=SHAPES, width=st.sampled_from([1, 8, 64]))
@settings(deadline=None, max_examples=200)
def test_parts_of_any_shape_are_read_or_left_alone(kind: str, which: int, shape: tuple[int, ...], width: int) -> None:
    matrix = np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32)
    stored = PACKS[kind]("a", matrix)
    name = sorted(stored)[which % len(stored)]
    stored[name] = np.zeros((*shape, width), stored[name].dtype)
    for tensor in logical(open_weights(stored)):
        if tensor.size:
            assert tensor.elements().size == tensor.size


def test_a_group_that_is_not_there_leaves_the_codes() -> None:
    stored = PACKS["gptq"]("a", np.ones((64, 128), np.float32))
    stored["a.g_idx"] = stored["a.g_idx"] + 7
    assert {tensor.name for tensor in logical(open_weights(stored))} == set(stored)
