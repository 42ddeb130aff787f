"""One Triton kernel that counts a tensor's non-finite elements on the device.

It reads the raw bits; where all are finite, which is nearly always, it writes nothing at all.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

# dtype → (view as, mask of the exponent, mask of the fraction, bits of half the smallest number)
_BITS = {
    torch.float32: (torch.int32, 0x7F800000, 0x007FFFFF, 0x7F000000),
    torch.bfloat16: (torch.int16, 0x7F80, 0x007F, 0x7F00),
    torch.float16: (torch.int16, 0x7C00, 0x03FF, 0x7800),
    torch.float64: (torch.int64, 0x7FF0000000000000, 0x000FFFFFFFFFFFFF, 0x7FE0000000000000),
}
_BLOCK = 8192


@triton.jit  # type: ignore[untyped-decorator]
def _count(x, out, n, EXPONENT: tl.constexpr, FRACTION: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = start + tl.arange(0, BLOCK)
    bits = tl.load(x + at, mask=at < n, other=0)
    size = bits & (EXPONENT | FRACTION)
    near = size >= LOW
    if tl.max(near.to(tl.int32), 0) > 0:
        special = (bits & EXPONENT) == EXPONENT
        nan = special & ((bits & FRACTION) != 0)
        inf = special & ((bits & FRACTION) == 0)
        negative = bits < 0
        nans = tl.sum(nan.to(tl.int32), 0)
        ups = tl.sum((inf & (bits >= 0)).to(tl.int32), 0)
        downs = tl.sum((inf & negative).to(tl.int32), 0)
        lows = tl.sum((near & negative & (special == 0)).to(tl.int32), 0)
        if nans > 0:
            tl.atomic_add(out, nans)
        if ups > 0:
            tl.atomic_add(out + 1, ups)
        if downs > 0:
            tl.atomic_add(out + 2, downs)
        if lows > 0:
            tl.atomic_add(out + 3, lows)


def launch(values: torch.Tensor, buffer: torch.Tensor, row: int) -> None:
    """Enqueue the count of a tensor into its row of the buffer, in the order of the current stream."""
    known = _BITS.get(values.dtype)
    if known is None:
        values, known = values.float(), _BITS[torch.float32]
    words, exponent, fraction, low = known
    if not values.is_contiguous():
        values = _dense(values)
    flat: Any = values.view(words)
    n = values.numel()
    _count[(triton.cdiv(n, _BLOCK),)](flat, buffer[row], n, exponent, fraction, low, _BLOCK)


def _dense(values: torch.Tensor) -> torch.Tensor:
    """Return the same elements in any order without gaps; a copy only where memory has gaps or repeats."""
    order = sorted(range(values.dim()), key=values.stride, reverse=True)
    permuted = values.permute(order)
    return permuted if permuted.is_contiguous() else values.contiguous()
