"""The block types of GGUF are decoded as llama.cpp's own package decodes them, whatever the bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from numscope.weights.sources.gguf_blocks import BLOCKS


@pytest.mark.parametrize("code", sorted(BLOCKS), ids=lambda code: BLOCKS[code].name)
def test_blocks_of_any_bytes(code: int) -> None:
    block = BLOCKS[code]
    kind = gguf.GGMLQuantizationType(code)
    assert gguf.GGML_QUANT_SIZES[kind] == (block.elements, block.bytes)
    raw = np.random.default_rng(code).integers(0, 256, (200, block.bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        theirs = gguf.quants.dequantize(raw, kind)
        ours = block.decode(raw)
    assert ours.dtype == np.float32
    finite = np.isfinite(theirs)
    np.testing.assert_array_equal(np.isfinite(ours), finite)
    # They multiply in another order: the same to a few roundings of the largest term.
    np.testing.assert_allclose(
        ours[finite], theirs[finite], rtol=1e-5, atol=1e-2 if block.name.endswith("_K") else 1e-5
    )
