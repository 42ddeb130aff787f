"""Tensors that a step ends with and the next one begins with: they need not be measured again.

An optimizer's results are the next step's parameters. Between the two the user's own code runs, so that they are trusted
only where nothing but torch itself, in sight of our mode, could write to them: a storage that one tensor alone looks at
(no flat buffer, no `.data` that somebody holds), that is not shared with another process or with numpy, and that no call
was seen to write to, to expose or to hand to a collective. Everything else is measured anew.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import compress, repeat
from operator import attrgetter
from typing import Any

import torch

from numscope.capture.columns import Lasting
from numscope.capture.recorder import Recorder
from numscope.capture.torch.identity.layouts import Form
from numscope.capture.torch.identity.subclasses import data_ptr, untyped_storage

_use_count = getattr(torch._C, "_storage_Use_Count", None)
_ALONE = 2  # the tensor, and the Python object of the storage that is asked
_address = attrgetter("_cdata")
_version = attrgetter("_version")
_is_cpu = attrgetter("is_cpu")
_resizable = torch.UntypedStorage.resizable
_is_shared = torch.UntypedStorage.is_shared  # with another process
# What torch has told of a tensor: itself, where its data are, its storage, and its form.
Told = tuple[weakref.ref[torch.Tensor], int, int, Any, Form]
# A tensor as it was measured: what torch told of it, its version, and its fingerprint.
Known = tuple[Told, int, Lasting]


def is_shared(storage: Any) -> bool | None:
    """Tell whether more than one tensor looks at a storage; None where torch cannot tell."""
    return None if _use_count is None else _use_count(storage._cdata) > _ALONE


def are_alone(addresses: Sequence[int]) -> bool:
    """Tell whether no two tensors look at one of these storages, whose Python objects must be there when it is asked."""
    return _use_count is not None and max(map(_use_count, addresses), default=0) <= _ALONE


def holds(known: Known, tensor: torch.Tensor, form: Any, version: int) -> bool:
    """Tell whether a tensor is the known one, and still the same."""
    reference, place, _, was, _ = known[0]
    return known[1] == version and reference() is tensor and was == form and place == data_ptr(tensor)


class Settled:
    """The tensors that were measured when they had their last value, by storage."""

    __slots__ = ("_coming", "known", "storages")

    def __init__(self) -> None:
        self.storages: dict[int, int] = {}  # by a tensor's id, of those that were ever known
        self._coming: dict[int, Known] = {}  # of the running step, for the next one
        self.known: dict[int, Known] = {}  # of the steps before

    def __bool__(self) -> bool:
        return bool(self.known or self._coming)

    def of(self, tensor: torch.Tensor) -> Known | None:
        """Return what is known of a tensor, if it is still the same: it need not be asked then for its form."""
        known = self.known.get(self.storages.get(id(tensor), 0))
        if known is not None:
            reference, place, _, _, _ = known[0]
            if reference() is tensor and known[1] == tensor._version and place == data_ptr(tensor):
                return known
        return None

    def add(
        self, recorder: Recorder, tensors: Sequence[torch.Tensor], told: Sequence[Told], numbers: Sequence[int]
    ) -> None:
        """Remember tensors as they are now, measured under these numbers of the running step, where they can be."""
        storages = list(map(untyped_storage, tensors))
        addresses = list(map(_address, storages))
        if not (are_alone(addresses) and _are_own(tensors, storages)):
            if len(tensors) > 1:  # those that can be are found one by one
                for tensor, one, number in zip(tensors, told, numbers):
                    self.add(recorder, (tensor,), (one,), (number,))
            return
        lasting = recorder.lasting(numbers)
        known = zip(told, map(_version, tensors), lasting)
        self._coming.update(compress(zip(addresses, known), lasting))  # type: ignore[arg-type]
        self.storages.update(zip(map(id, tensors), addresses))

    def discard(self, address: int) -> None:
        """Measure what lies in this storage anew."""
        self.known.pop(address, None)
        self._coming.pop(address, None)

    def discard_all(self, addresses: Collection[int | None]) -> None:
        """Measure what lies in these storages anew."""
        both: tuple[dict[Any, Any], ...] = (self.known, self._coming)
        for known in both:
            if known:
                deque(map(known.pop, addresses, repeat(None)), 0)  # which only calls it, for each

    def clear(self) -> None:
        """Measure everything anew."""
        self.known.clear()
        self._coming.clear()

    def new_step(self) -> Collection[int]:
        """Begin a step; return the storages of what it can refer to."""
        known = {**self.known, **self._coming}
        self._coming = {}
        for address in [address for address, one in known.items() if one[0][0]() is None]:
            del known[address]
        self.known = known
        if len(self.storages) > 2 * len(known):
            self.storages = {id(one[0][0]()): address for address, one in known.items()}
        return known.keys()


def _are_own(tensors: Iterable[torch.Tensor], storages: Iterable[Any]) -> bool:
    """Tell whether nobody else has the memory of these storages: no numpy array, and no other process."""
    return all(map(_resizable, storages)) and not any(map(_is_shared, compress(storages, map(_is_cpu, tensors))))
