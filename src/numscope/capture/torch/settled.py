"""Tensors that a step ends with and the next one begins with: they need not be measured again.

An optimizer's results are the next step's parameters. Between the two the user's own code runs, so that they are trusted
only where nothing but torch itself, in sight of our mode, could write to them: a storage that one tensor alone looks at
(no flat buffer, no `.data` that somebody holds), that is not shared with another process or with numpy, and that no call
was seen to write to, to expose or to hand to a collective. Everything else is measured anew.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch

from numscope.capture.columns import Lasting
from numscope.capture.recorder import Recorder
from numscope.capture.torch.plain import data_ptr, untyped_storage

_use_count = getattr(torch._C, "_storage_Use_Count", None)
_ALONE = 2  # the tensor, and the Python object of the storage that is asked


def is_shared(storage: Any) -> bool | None:
    """Tell whether more than one tensor looks at a storage; None where torch cannot tell."""
    return None if _use_count is None else _use_count(storage._cdata) > _ALONE


class _Known(NamedTuple):
    """A tensor as it was measured."""

    tensor: weakref.ref[torch.Tensor]
    form: Any
    version: int
    address: int  # of its data
    lasting: Lasting

    def holds(self, tensor: torch.Tensor, form: Any, version: int) -> bool:
        """Tell whether a tensor is this one, and still the same."""
        same = self.version == version and self.tensor() is tensor and self.form == form
        return same and self.address == data_ptr(tensor)


class Settled:
    """The tensors that were measured when they had their last value, by storage."""

    __slots__ = ("_coming", "known")

    def __init__(self) -> None:
        self._coming: dict[int, _Known] = {}  # of the running step, for the next one
        self.known: dict[int, _Known] = {}  # of the steps before

    def __bool__(self) -> bool:
        return bool(self.known or self._coming)

    def add(self, recorder: Recorder, tensor: torch.Tensor, form: Any, number: int) -> bool:
        """Remember a tensor as it is now, measured under this number of the running step; tell whether it can be."""
        storage = untyped_storage(tensor)
        if is_shared(storage) is not False or not storage.resizable():
            return False
        if tensor.is_conj() or (tensor.is_cpu and storage.is_shared()):
            return False
        lasting = recorder.lasting(number)
        if lasting is None:
            return False
        self._coming[storage._cdata] = _Known(weakref.ref(tensor), form, tensor._version, data_ptr(tensor), lasting)
        return True

    def discard(self, address: int) -> None:
        """Measure what lies in this storage anew."""
        self.known.pop(address, None)
        self._coming.pop(address, None)

    def clear(self) -> None:
        """Measure everything anew."""
        self.known.clear()
        self._coming.clear()

    def new_step(self) -> set[int]:
        """Begin a step; return the storages of what it can refer to."""
        known = {**self.known, **self._coming}
        self._coming = {}
        self.known = {address: one for address, one in known.items() if one.tensor() is not None}
        return set(self.known)

    def forget_those(self, storages: set[int]) -> None:
        """Forget what lay in storages that are gone."""
        for address in storages:
            self.discard(address)
