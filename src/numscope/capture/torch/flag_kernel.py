"""Triton kernels that count non-finite elements on the device: of one tensor, or of many in one launch.

They read the raw bits. Where all is finite, which is nearly always, nothing is written; else the same elements are read
once more and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

# dtype → code, bytes, mask of the exponent, mask of the fraction, bits of half the smallest number
_KINDS = {
    torch.float32: (4, 0x7F800000, 0x007FFFFF, 0x7F000000),
    torch.bfloat16: (2, 0x7F80, 0x007F, 0x7F00),
    torch.float16: (2, 0x7C00, 0x03FF, 0x7800),
    torch.float64: (8, 0x7FF0000000000000, 0x000FFFFFFFFFFFFF, 0x7FE0000000000000),
}
_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_TILE = 8192  # bytes times four: a program's loads that are under way at a time
_PROGRAMS = 132 * 16


@triton.jit  # type: ignore[untyped-decorator]
def _scan(x, out, n, first, step, EXPONENT: tl.constexpr, FRACTION: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    lane = tl.arange(0, BLOCK)
    near = tl.zeros((BLOCK,), tl.int1)
    start = first
    while start < n:
        at = start + lane
        bits = tl.load(x + at, mask=at < n, other=0)
        near = near | ((bits & (EXPONENT | FRACTION)) >= LOW)
        start += step
    if tl.max(near.to(tl.int32), 0) > 0:
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


@triton.jit(do_not_specialize=["n"])  # type: ignore[untyped-decorator]
def _one(x, out, n, EXPONENT: tl.constexpr, FRACTION: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    first = tl.program_id(0).to(tl.int64) * BLOCK
    _scan(x, out, n, first, tl.num_programs(0).to(tl.int64) * BLOCK, EXPONENT, FRACTION, LOW, BLOCK)


@triton.jit  # type: ignore[untyped-decorator]
def _many(table, out, like, EXPONENT: tl.constexpr, FRACTION: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    entry = table + tl.program_id(1) * 3
    x = tl.multiple_of(tl.load(entry).to(like.dtype), 16)
    n = tl.load(entry + 1)
    row = tl.load(entry + 2)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    _scan(x, out + row * 4, n, first, tl.num_programs(0).to(tl.int64) * BLOCK, EXPONENT, FRACTION, LOW, BLOCK)


class Launcher:
    """Enqueues counts into the rows of a buffer, each launch a few microseconds of the host's time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._index = device.index if device.index is not None else torch.cuda.current_device()
        self._compiled: dict[Any, Any] = {}

    def one(self, values: torch.Tensor, buffer: torch.Tensor, row: int) -> None:
        """Count one tensor without gaps."""
        dtype = values.dtype
        if dtype not in _KINDS:
            values, dtype = values.float(), torch.float32
        address, n = values.data_ptr(), values.numel()
        key = (dtype, address % 16 == 0)
        found = self._compiled.get(key) or self._compile_one(key)
        run, function, metadata, block, constants = found
        out = buffer.data_ptr() + row * 16
        programs = min(-(-n // block), _PROGRAMS)
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        run(programs, 1, 1, stream, function, metadata, None, None, None, address, out, n, *constants)

    def many(self, tensors: Sequence[torch.Tensor], buffer: torch.Tensor, rows: Sequence[int]) -> None:
        """Count tensors of one dtype, without gaps and at addresses of 16 bytes, in one launch."""
        dtype = tensors[0].dtype
        width, *constants = _KINDS[dtype]
        block = 4 * _TILE // width // 2
        largest = max(tensor.numel() for tensor in tensors)
        entries = [(tensor.data_ptr(), tensor.numel(), row) for tensor, row in zip(tensors, rows)]
        table = torch.tensor(entries, dtype=torch.int64).pin_memory().to(self._device, non_blocking=True)
        like = torch.empty(16, dtype=_WORDS[width], device=self._device)
        grid = (min(-(-largest // block), 264), len(entries))
        _many[grid](table, buffer, like, *constants, block, num_warps=8)

    def _compile_one(self, key: tuple[torch.dtype, bool]) -> Any:
        dtype, aligned = key
        width, *bits = _KINDS[dtype]
        block = 4 * _TILE // width // 2
        stand_in = torch.empty(64, dtype=_WORDS[width], device=self._device)
        out = torch.empty(4, dtype=torch.int32, device=self._device)
        constants = (*bits, block)
        warm: Any = _one.warmup(stand_in if aligned else stand_in[1:], out, 1 << 33, *constants, grid=(1,), num_warps=8)
        run = warm.run  # makes the function, too
        found = self._compiled[key] = (run, warm.function, warm.packed_metadata, block, constants)
        return found


def is_known(dtype: torch.dtype) -> bool:
    """Tell whether the bits of a dtype are known here."""
    return dtype in _KINDS
