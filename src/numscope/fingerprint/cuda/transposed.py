"""A matrix, or a stack of them, that lies transposed: copied in its logical order, in squares, at the memory's speed."""

# mypy: ignore-errors
# (the kernel is written in Triton's own language, which has no types that mypy knows)
from __future__ import annotations

import triton
import triton.language as tl

SQUARE = 64

_SQUARE = tl.constexpr(SQUARE)


@triton.jit(do_not_specialize=["rows", "columns", "stride", "many", "plane1", "plane2"])
def transposed(
    data,
    out,
    rows: tl.int64,
    columns: tl.int64,
    stride: tl.int64,
    many: tl.int64,
    plane1: tl.int64,
    plane2: tl.int64,
    EVEN: tl.constexpr,  # of addresses and strides: how many elements they are multiples of
):
    """Write out[plane, row, column] = data[row + column * stride], a square by each program.

    Plane p of `data` begins at (p % many) * plane1 + (p // many) * plane2.
    """
    across, down = tl.cdiv(columns, _SQUARE), tl.cdiv(rows, _SQUARE)
    square = tl.program_id(0).to(tl.int64)
    plane = square // (across * down)
    square -= plane * across * down
    data += tl.multiple_of((plane % many) * plane1 + (plane // many) * plane2, EVEN)
    row = (square // across) * _SQUARE + tl.arange(0, _SQUARE)
    column = (square % across) * _SQUARE + tl.arange(0, _SQUARE)
    there = (row < rows)[:, None] & (column < columns)[None, :]
    value = tl.load(data + row[:, None] + (column * tl.multiple_of(stride, EVEN))[None, :], mask=there, other=0)
    tl.store(out + plane * rows * columns + row[:, None] * columns + column[None, :], value, mask=there)
