"""Views of kept tensors: a view is kept as offset and strides in its base's data, not as a second copy.

A view shares the version counter of its root, so at an equal version its memory holds what the root's held. Two tensors
that share memory in another way (`.data`, `nn.Parameter(x)`) have a counter each: they have no common root, and each is
kept with data of its own. An operator may write before the counter rises, or without raising it: then the storage has a
new generation (`storages.py`).
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch

from numscope.store.batch import View


class _KeptBase(NamedTuple):
    """A kept tensor that is one whole piece of memory."""

    number: int
    root: weakref.ref[torch.Tensor]
    version: int
    generation: int | None  # of its storage
    address: int  # of its first element
    dtype: torch.dtype
    elements: int


class KeptBases:
    """The kept tensors of a step that are whole pieces of memory: for each root the largest."""

    def __init__(self) -> None:
        self._bases: dict[int, _KeptBase] = {}  # by the id of the root

    def view(self, tensor: torch.Tensor, generation: int | None) -> View | None:
        """Return where a tensor's elements lie in a kept tensor, or None where no kept tensor has them."""
        try:
            root = _root(tensor)
            base = self._bases.get(id(root))
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
        """Remember a kept tensor: its views need no data of their own."""
        if not tensor.is_contiguous() or tensor.numel() == 0 or _is_lazy(tensor):
            return
        try:
            root, version = _root(tensor), tensor._version
        except RuntimeError:
            return
        base = self._bases.get(id(root))
        elements = tensor.numel()
        is_current = (
            base is not None and base.root() is root and base.version == version and base.generation == generation
        )
        if not (is_current and base is not None and base.elements >= elements):
            self._bases[id(root)] = _KeptBase(
                number, weakref.ref(root), version, generation, tensor.data_ptr(), tensor.dtype, elements
            )

    def clear(self) -> None:
        """Forget all: a new step begins."""
        self._bases.clear()


def _root(tensor: torch.Tensor) -> torch.Tensor:
    """Return the base of a view, or the tensor itself."""
    base = tensor._base
    return tensor if base is None else base


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Tell whether the conjugate or negative bit is set: the memory holds other numbers than the tensor."""
    return tensor.is_neg() or (tensor.is_complex() and tensor.is_conj())
