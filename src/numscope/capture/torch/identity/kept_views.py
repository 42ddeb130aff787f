"""Kept tensors whose memory others show: a view of one is kept as a view, not as a second copy.

A view has the version counter of its root, so what is in its memory is what was there when the root had this version. Two
tensors that share memory in another way (`.data`, `nn.Parameter(x)`) have a counter each: they have no root in common,
and each has data of its own. An operator may have written before the version rises, or without that: the storage's
generation, a new one after each such write, tells (`storages.py`).
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch

from numscope.store.batch import View


class _KeptBase(NamedTuple):
    number: int
    root: weakref.ref[torch.Tensor]
    version: int
    generation: int | None  # of its storage
    address: int  # of its first element
    dtype: torch.dtype
    elements: int


class KeptBases:
    """The kept tensors of a step that are whole pieces of memory: for each root the largest one."""

    def __init__(self) -> None:
        self._known: dict[int, _KeptBase] = {}

    def view(self, tensor: torch.Tensor, generation: int | None) -> View | None:
        """Return where a tensor's elements are in a kept one, or None where there is none that has them."""
        try:
            root = _root(tensor)
            base = self._known.get(id(root))
            if (
                base is None
                or base.root() is not root
                or base.version != tensor._version
                or base.generation != generation
            ):
                return None
        except RuntimeError:  # an inference tensor has no version
            return None
        distance = tensor.data_ptr() - base.address
        if distance < 0 or tensor.dtype != base.dtype or tensor.numel() == 0 or _is_lazy(tensor):
            return None
        offset, rest = divmod(distance, tensor.element_size())
        strides = tensor.stride()
        end = offset + sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
        return None if rest or end >= base.elements else View(base.number, offset, strides)

    def add(self, number: int, tensor: torch.Tensor, generation: int | None) -> None:
        """Remember a tensor that is kept: its views need no data of their own."""
        if not tensor.is_contiguous() or tensor.numel() == 0 or _is_lazy(tensor):
            return
        try:
            root, version = _root(tensor), tensor._version
        except RuntimeError:
            return
        known = self._known.get(id(root))
        elements = tensor.numel()
        same = (
            known is not None and known.root() is root and known.version == version and known.generation == generation
        )
        if not (same and known is not None and known.elements >= elements):
            self._known[id(root)] = _KeptBase(
                number, weakref.ref(root), version, generation, tensor.data_ptr(), tensor.dtype, elements
            )

    def clear(self) -> None:
        """Forget all: a new step begins."""
        self._known.clear()


def _root(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that a view is one of, or the tensor itself."""
    base = tensor._base
    return tensor if base is None else base


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Tell whether a negation or conjugation is put off: the memory has other elements."""
    return tensor.is_neg() or (tensor.is_complex() and tensor.is_conj())
