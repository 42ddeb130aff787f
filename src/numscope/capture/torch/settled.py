"""Tensors that a step ends with and the next one begins with: they need not be measured again.

An optimizer's results are the next step's parameters. Between the two the user's own code runs, so that they are trusted
only where nothing but torch itself, in sight of our mode, could write to them: a storage that one tensor alone looks at
(no flat buffer, no `.data` that somebody holds), that is not shared with another process or with numpy, and that no call
was seen to write to, to expose or to hand to a collective. Everything else is measured anew.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from numscope.capture.columns import Lasting
from numscope.capture.recorder import Recorder

_use_count = getattr(torch._C, "_storage_Use_Count", None)
_Known = tuple[
    weakref.ref[torch.Tensor], Any, int, Lasting
]  # the tensor, its form, where its data lies, its fingerprint
_ALONE = 2  # the tensor, and the Python object of the storage that is asked


def is_shared_memory(tensor: torch.Tensor) -> bool:
    """Tell whether other tensors look at this one's memory; False where torch cannot tell."""
    try:
        storage = tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return False
    return _use_count is not None and _use_count(storage._cdata) > _ALONE


class Settled:
    """The tensors that were measured when they had their last value, by storage."""

    __slots__ = ("_coming", "_known")

    def __init__(self) -> None:
        self._coming: dict[int, _Known] = {}  # of the running step, for the next one
        self._known: dict[int, _Known] = {}  # of the steps before

    def __bool__(self) -> bool:
        return bool(self._known or self._coming)

    def add(self, recorder: Recorder, tensor: torch.Tensor, form: Any, number: int) -> bool:
        """Remember a tensor as it is now, measured under this number of the running step; tell whether it can be."""
        storage = tensor.untyped_storage()
        if _use_count is None or is_shared_memory(tensor) or not storage.resizable():
            return False
        if tensor.is_conj() or (tensor.is_cpu and storage.is_shared()):
            return False
        lasting = recorder.lasting(number)
        if lasting is None:
            return False
        self._coming[storage._cdata] = (weakref.ref(tensor), form, tensor.data_ptr(), lasting)
        return True

    def find(self, tensor: torch.Tensor, address: int, form: Any) -> Lasting | None:
        """Return the fingerprint of a tensor that is still the same, or None."""
        known = self._known.get(address)
        if known is not None and known[0]() is tensor and known[1] == form and known[2] == tensor.data_ptr():
            return known[3]
        return None

    def discard(self, address: int) -> None:
        """Measure what lies in this storage anew."""
        self._known.pop(address, None)
        self._coming.pop(address, None)

    def clear(self) -> None:
        """Measure everything anew."""
        self._known.clear()
        self._coming.clear()

    def new_step(self) -> set[int]:
        """Begin a step; return the storages of what it can refer to."""
        known = {**self._known, **self._coming}
        self._coming = {}
        self._known = {address: one for address, one in known.items() if one[0]() is not None}
        return set(self._known)

    def forget_those(self, storages: set[int]) -> None:
        """Forget what lay in storages that are gone."""
        for address in storages:
            self.discard(address)
