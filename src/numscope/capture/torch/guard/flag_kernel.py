"""Triton kernels that count non-finite elements on the device: of one tensor, or of many in one launch.

They read words of raw bits and keep the largest magnitude: as integers, magnitudes are ordered as the numbers are, with
infinity and NaN above all. Where all is finite, which is nearly always, nothing is written; else a program reads its
elements once more and counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from numscope.fingerprint.cuda.launch import Launch, launch_of

# dtype → bytes, mask of the exponent, mask of the fraction, bits of half the smallest number
_KINDS = {
    torch.float32: (4, 0x7F800000, 0x007FFFFF, 0x7F000000),
    torch.bfloat16: (2, 0x7F80, 0x007F, 0x7F00),
    torch.float16: (2, 0x7C00, 0x03FF, 0x7800),
    torch.float64: (8, 0x7FF0000000000000, 0x000FFFFFFFFFFFFF, 0x7FE0000000000000),
}
_BLOCK = {2: 4096, 4: 4096, 8: 2048}  # words that a program reads at a time
_PROGRAMS = 132 * 8
_MANY = 132  # programs for each of many tensors


@triton.jit  # type: ignore[untyped-decorator]
def _count(  # type: ignore[no-untyped-def]
    x,
    out,
    n,
    first,
    step,
    EXPONENT: tl.constexpr,
    FRACTION: tl.constexpr,
    LOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Count the elements [first, first + BLOCK), and every step further, up to n."""
    lane = tl.arange(0, BLOCK)
    nans = tl.zeros((BLOCK,), tl.int32)
    ups = tl.zeros((BLOCK,), tl.int32)
    downs = tl.zeros((BLOCK,), tl.int32)
    lows = tl.zeros((BLOCK,), tl.int32)
    start = first
    while start < n:
        at = start + lane
        bits = tl.load(x + at, mask=at < n, other=0)
        special = (bits & EXPONENT) == EXPONENT
        whole = (bits & FRACTION) == 0
        nans += (special & (whole == 0)).to(tl.int32)
        ups += (special & whole & (bits >= 0)).to(tl.int32)
        downs += (special & whole & (bits < 0)).to(tl.int32)
        lows += (((bits & (EXPONENT | FRACTION)) >= LOW) & (special == 0) & (bits < 0)).to(tl.int32)
        start += step
    tl.atomic_add(out, tl.sum(nans, 0))
    tl.atomic_add(out + 1, tl.sum(ups, 0))
    tl.atomic_add(out + 2, tl.sum(downs, 0))
    tl.atomic_add(out + 3, tl.sum(lows, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _scan(  # type: ignore[no-untyped-def]
    x,
    out,
    n,
    first,
    step,
    SIZE: tl.constexpr,
    EXPONENT: tl.constexpr,
    FRACTION: tl.constexpr,
    LOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Look at n elements; x, first and step are in words, of two elements where those have 2 bytes.

    Whole blocks are read without a mask, 16 bytes at a time; the rest belongs to the program whose turn it would be.
    """
    lane = tl.arange(0, BLOCK)
    start = first
    if SIZE == 2:
        words = n // 2
        whole = words // BLOCK * BLOCK
        high = tl.zeros((BLOCK,), tl.int32)
        low = tl.zeros((BLOCK,), tl.int32)
        while start < whole:
            bits = tl.load(x + (tl.multiple_of(start, 16) + lane))
            high = tl.maximum(high, bits & 0x7FFFFFFF)
            low = tl.maximum(low, bits & 0x7FFF)
            start += step
        if start < words:
            bits = tl.load(x + start + lane, mask=start + lane < words, other=0)
            high = tl.maximum(high, bits & 0x7FFFFFFF)
            low = tl.maximum(low, bits & 0x7FFF)
        half = x.to(tl.pointer_type(tl.int16), bitcast=True)
        last = tl.load(half + n - 1).to(tl.int32) & 0x7FFF
        largest = tl.maximum(tl.maximum(tl.max(high, 0) >> 16, tl.max(low, 0)), last)
        if largest >= LOW:
            # The last of an odd number of elements belongs to the program that would read the word after the words.
            _count(half, out, n, first * 2, step * 2, EXPONENT, FRACTION, LOW, BLOCK * 2)
    else:
        whole = n // BLOCK * BLOCK
        size = tl.zeros((BLOCK,), x.dtype.element_ty)
        while start < whole:
            bits = tl.load(x + (tl.multiple_of(start, 16) + lane))
            size = tl.maximum(size, bits & (EXPONENT | FRACTION))
            start += step
        if start < n:
            bits = tl.load(x + start + lane, mask=start + lane < n, other=0)
            size = tl.maximum(size, bits & (EXPONENT | FRACTION))
        if tl.max(size, 0) >= LOW:
            _count(x, out, n, first, step, EXPONENT, FRACTION, LOW, BLOCK)


@triton.jit(do_not_specialize=["n"])  # type: ignore[untyped-decorator]
def _one(  # type: ignore[no-untyped-def]
    x,
    out,
    n,
    SIZE: tl.constexpr,
    EXPONENT: tl.constexpr,
    FRACTION: tl.constexpr,
    LOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    _scan(x, out, n, first, tl.num_programs(0).to(tl.int64) * BLOCK, SIZE, EXPONENT, FRACTION, LOW, BLOCK)


@triton.jit  # type: ignore[untyped-decorator]
def _many(  # type: ignore[no-untyped-def]
    table,
    out,
    like,
    SIZE: tl.constexpr,
    EXPONENT: tl.constexpr,
    FRACTION: tl.constexpr,
    LOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Look at the tensors of a table: address, elements, row, and the row that must show something, or its own."""
    entry = table + tl.program_id(1) * 4
    x = tl.multiple_of(tl.load(entry).to(like.dtype), 16)
    n = tl.load(entry + 1)
    row = tl.load(entry + 2)
    root = tl.load(entry + 3)
    flags = out + root * 4
    wanted = (root == row) | (tl.load(flags) + tl.load(flags + 1) + tl.load(flags + 2) != 0)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    if wanted & (first * (4 // SIZE if SIZE < 4 else 1) < n + 1):
        _scan(x, out + row * 4, n, first, tl.num_programs(0).to(tl.int64) * BLOCK, SIZE, EXPONENT, FRACTION, LOW, BLOCK)


class _Compiled(NamedTuple):
    """A kernel for tensors of one dtype, at addresses of 16 bytes or others."""

    launch: Launch
    block: int
    constants: tuple[int, ...]


class TritonLauncher:
    """Enqueues counts into the rows of a buffer, each launch a few microseconds of the host's time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._index = device.index if device.index is not None else torch.cuda.current_device()
        self._compiled: dict[tuple[torch.dtype, bool], _Compiled] = {}

    def one(self, values: torch.Tensor, buffer: torch.Tensor, row: int) -> None:
        """Count one tensor without gaps."""
        dtype = values.dtype
        if dtype not in _KINDS:
            values, dtype = values.float(), torch.float32
        address, n = values.data_ptr(), values.numel()
        if address % 4:  # a half-word of 2-byte elements that begins in the middle of a word
            values = values.clone()
            address = values.data_ptr()
        key = (dtype, address % 16 == 0)
        launch, block, constants = self._compiled.get(key) or self._compile_one(key)
        out = buffer.data_ptr() + row * 16
        words = n // 2 + 1 if values.element_size() == 2 else n
        programs = min(-(-words // block), _PROGRAMS)
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        launch(programs, stream, address, out, n, *constants)

    def many(self, looks: Sequence[tuple[torch.Tensor, int, int]], buffer: torch.Tensor) -> None:
        """Count tensors of one dtype, without gaps and at addresses of 16 bytes, in one launch.

        With each come its row, and the row that must show something for it to be counted at all, or -1.
        """
        size, *bits = _KINDS[looks[0][0].dtype]
        largest = max(tensor.numel() for tensor, _, _ in looks)
        entries = [(item.data_ptr(), item.numel(), row, root if root >= 0 else row) for item, row, root in looks]
        table = torch.tensor(entries, dtype=torch.int64).pin_memory().to(self._device, non_blocking=True)
        like = torch.empty(16, dtype=torch.int64 if size == 8 else torch.int32, device=self._device)
        words = largest // 2 + 1 if size == 2 else largest
        grid = (min(-(-words // _BLOCK[size]), _MANY), len(entries))
        _many[grid](table, buffer, like, size, *bits, _BLOCK[size], num_warps=8)

    def _compile_one(self, key: tuple[torch.dtype, bool]) -> _Compiled:
        dtype, aligned = key
        size, *bits = _KINDS[dtype]
        stand_in = torch.empty(64, dtype=torch.int64 if size == 8 else torch.int32, device=self._device)
        out = torch.empty(4, dtype=torch.int32, device=self._device)
        constants = (size, *bits, _BLOCK[size])
        warm = _one.warmup(stand_in if aligned else stand_in[1:], out, 1 << 33, *constants, grid=(1,), num_warps=8)
        compiled = self._compiled[key] = _Compiled(launch_of(warm), _BLOCK[size], constants)
        return compiled
