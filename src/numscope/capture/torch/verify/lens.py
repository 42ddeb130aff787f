"""Elements of a tensor as float64 on the host, read by no operator of the device: a wrong kernel must not hide itself.

A tensor of the CPU is read through its memory. Of any other device, a part is copied there by one view and one copy, and
comes to the host with the next flush; nobody waits for it.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

_NUMPY: dict[torch.dtype, Any] = {
    torch.float64: np.float64,
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}
_SAME = (np.int64, np.int32)  # indices stay whole numbers


class Range(NamedTuple):
    """Every step-th place of a dimension, from a start."""

    start: int
    step: int
    size: int

    @property
    def places(self) -> Array:
        """The places themselves."""
        return self.start + self.step * np.arange(self.size)


Box: TypeAlias = tuple[Range, ...]  # of each dimension


class Read(NamedTuple):
    """The elements of a tensor that a rule asks for: a box of it, and of those rows the ones that an index names."""

    tensor: torch.Tensor
    box: Box
    rows: Array | None = None  # places in the first dimension; the box has the others


def whole(tensor: torch.Tensor) -> Box:
    """Return the box that is all of a tensor."""
    return tuple(Range(0, 1, size) for size in tensor.shape)


def all_of(tensor: torch.Tensor) -> Read:
    """Ask for all elements of a tensor."""
    return Read(tensor, whole(tensor))


def spread(tensor: torch.Tensor, box: Box) -> Read:
    """Ask for the elements that broadcasting puts into a box of the result; a dimension of one element stays one."""
    own = box[len(box) - tensor.dim() :]
    return Read(tensor, tuple(Range(0, 1, 1) if size == 1 else r for size, r in zip(tensor.shape, own)))


def is_readable(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has elements that can be read: plain memory of a dtype that numpy knows."""
    return (
        tensor.layout is torch.strided
        and tensor.dtype in _NUMPY
        and not tensor.is_quantized
        and not tensor.is_neg()
        and not tensor.is_meta
    )


def elements(read: Read) -> Array:
    """Return what was asked for of a tensor of the CPU, as float64; whole numbers as they are."""
    memory = _memory(read.tensor, read.box if read.rows is None else whole(read.tensor)[:1] + read.box)
    if read.rows is not None:
        memory = memory[read.rows]
    return memory.copy() if memory.dtype in _SAME else memory.astype(np.float64)


def _memory(tensor: torch.Tensor, box: Box) -> Array:
    dtype = np.dtype(_NUMPY[tensor.dtype])
    shape = tuple(r.size for r in box)
    if 0 in shape:
        return np.empty(shape, dtype)
    size = dtype.itemsize
    strides = tensor.stride()
    offset = sum(r.start * stride for r, stride in zip(box, strides)) * size
    steps = tuple(r.step * stride * size for r, stride in zip(box, strides))
    extent = size + sum((count - 1) * step for count, step in zip(shape, steps))
    raw = (ctypes.c_char * extent).from_address(tensor.data_ptr() + offset)
    return np.ndarray(shape, dtype, raw, 0, steps)


def part(read: Read) -> torch.Tensor:
    """Return what was asked for of a tensor on a device, copied there."""
    tensor, box = read.tensor.detach(), read.box
    if read.rows is not None:
        index = torch.as_tensor(read.rows, device=tensor.device)
        tensor = tensor.index_select(0, index.reshape(-1)).reshape(*index.shape, *tensor.shape[1:])
        box = (*(Range(0, 1, size) for size in index.shape), *box)
    strides = tensor.stride()
    offset = tensor.storage_offset() + sum(r.start * stride for r, stride in zip(box, strides))
    steps = [r.step * stride for r, stride in zip(box, strides)]
    return tensor.as_strided([r.size for r in box], steps, offset).clone()
