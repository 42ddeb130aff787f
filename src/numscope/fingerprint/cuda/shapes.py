"""The division of a tensor among the programs of the Triton kernels, and the description of its layout for them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from numscope.fingerprint.constants import BUCKETS

# of one program: its float32 sums stay short enough for 1e-6, and bfloat16 counts a group's zeros, 256 at most, exactly
MOST_TILES = 64
MOST_PROGRAMS = 40 * BUCKETS
# elements to a word, of the kinds that have the fast loop
PER = {"float32": 1, "bfloat16": 2, "float16": 2}
PER |= dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool"), 4)
PER_WORD = (1, 2, 4)
_DIMENSIONS = 5
FLAT = [1] * _DIMENSIONS + [0] * (_DIMENSIONS - 1)  # sizes and strides of what lies in one piece
LEAST_COPY = 1 << 18  # elements: a smaller tensor is read where it lies
_LARGEST_COPY = 1 << 28  # bytes


@dataclass
class Tuning:
    """The compiler's options of a kernel; bench/gpu_fingerprint.py measures the choices."""

    warps: int
    registers: int  # at most, per thread: the careful part may spill, the loop hardly does

    def at_once(self, processors: int) -> int:
        """Return the number of programs that run at once on a device."""
        return processors * max(1, 65536 // (32 * self.warps * self.registers))


# by the elements to a word; 0: element by element
TUNING = {per: Tuning(4, 128) for per in (0, *PER_WORD)}


def programs_for(tiles: int, at_once: int) -> int:
    """Return the number of programs for this many tiles: one per tile, or a multiple of 61.

    All run at once; or, where each would have more than MOST_TILES, twice as many or three times …: a few programs more
    than run at once would double the time.
    """
    if tiles <= BUCKETS:
        return tiles
    few = -(-tiles // (4 * BUCKETS)) * BUCKETS  # four tiles each at least
    least = -(-tiles // (MOST_TILES * BUCKETS)) * BUCKETS
    waves = 1
    while waves * at_once // BUCKETS * BUCKETS < least:
        waves += 1
    return min(few, max(waves * at_once // BUCKETS * BUCKETS, BUCKETS), MOST_PROGRAMS)


def collapsed(tensor: torch.Tensor, parts: int) -> list[int] | None:
    """Return the inner sizes, the strides (innermost first, of real elements) and the kernel's number of dimensions.

    None where a copy is better: more than five dimensions, or a large tensor whose neighbours lie far apart.
    """
    dimensions = _dimensions(tensor, parts)
    if dimensions is None:
        return None
    sizes, strides = dimensions
    if len(sizes) > _DIMENSIONS:
        return None
    near = not sizes or strides[0] == 0 or (strides[0] == 1 and sizes[0] >= 16)
    if not near and math.prod(sizes) > LEAST_COPY:
        return None
    dims = 3 if len(sizes) <= 3 else _DIMENSIONS
    sizes += [1] * (_DIMENSIONS - len(sizes))
    strides += [0] * (_DIMENSIONS - len(strides))
    return [*sizes[: _DIMENSIONS - 1], *strides, dims]


def in_rows(tensor: torch.Tensor, parts: int, per: int) -> list[int] | None:
    """Return the arguments of `row_offset` for a tensor with non-contiguous rows, or None where it has another layout.

    Its rows are of whole groups of 16 bytes at addresses that are multiples of 16, in four more dimensions at most. Last
    comes the kernel's number of dimensions.
    """
    dimensions = _dimensions(tensor, parts)
    group = 4 * per  # elements
    if dimensions is None or tensor.data_ptr() % 16:
        return None
    sizes, strides = dimensions
    if (
        not sizes
        or strides[0] != 1
        or len(sizes) > _DIMENSIONS
        or any(part % group for part in (sizes[0], *strides[1:]))
    ):
        return None
    extent = sum((size - 1) * stride for size, stride in zip(sizes, strides))
    if min(strides) < 0 or max(extent, math.prod(sizes)) >= 1 << 31:
        return None
    dims = 3 if len(sizes) <= 3 else 5
    sizes = [sizes[0] // group, *sizes[1:]]
    strides = [4, *(stride // per for stride in strides[1:])]
    last = strides.pop() if len(strides) == dims else 0
    sizes = (sizes + [1] * 4)[: dims - 1] + [1] * (5 - dims)
    strides = (strides + [0] * 4)[: dims - 1] + [0] * (5 - dims)
    shifts = [(size - 1).bit_length() for size in sizes]
    divisors = [((1 << 32) * ((1 << shift) - size)) // size + 1 | shift << 32 for size, shift in zip(sizes, shifts)]
    return [*divisors, *(size | stride << 32 for size, stride in zip(sizes, strides)), last, dims]


def turned(tensor: torch.Tensor, parts: int) -> list[int] | None:
    """Return the number of planes in a stack of transposed matrices and the arguments of `transposed`; else None.

    Complex, packed and very large tensors are left to torch: the copy would take as much memory again. Elements of small
    ones are read where they lie.
    """
    dimensions = _dimensions(tensor, parts)
    if dimensions is None or parts > 1 or not LEAST_COPY < tensor.numel() <= _LARGEST_COPY // tensor.element_size():
        return None
    sizes, strides = dimensions
    if not 2 <= len(sizes) <= 4 or strides[1] != 1 or strides[0] < sizes[1] or min(sizes[:2]) < 16 or min(strides) < 0:
        return None
    many, stack = (*sizes[2:], 1, 1)[:2]
    plane, block = (*strides[2:], 0, 0)[:2]
    return [many * stack, sizes[1], sizes[0], strides[0], many, plane, block]


def _dimensions(tensor: torch.Tensor, parts: int) -> tuple[list[int], list[int]] | None:
    """Return sizes and strides of real elements, innermost first, contiguous dimensions merged; None for a packed dtype."""
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor)
    elif parts > 1:
        return None
    sizes: list[int] = []
    strides: list[int] = []
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride())):
        if size == 1:
            continue
        if sizes and stride == strides[-1] * sizes[-1]:
            sizes[-1] *= size
        else:
            sizes.append(size)
            strides.append(stride)
    return sizes, strides
