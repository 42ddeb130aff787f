"""Fingerprints carried over from one step to the next: parameters that an optimizer has written need not be measured again.

An optimizer's results are the next step's parameters. Between the two the user's own code runs, so a fingerprint is carried
over only where nothing but torch itself, in sight of our mode, could write to the tensor: its storage belongs to that one
tensor (no flat buffer, no `.data` that somebody holds), is not shared with another process or with numpy, and no call was
seen to write to it, to expose it or to pass it to a collective. Everything else is measured anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import compress, repeat
from operator import attrgetter

import torch

from numscope.capture.recording.columns import Lasting
from numscope.capture.recording.recorder import Recorder
from numscope.capture.torch.identity.known_tensors import KnownTensor
from numscope.capture.torch.identity.layouts import Layout
from numscope.capture.torch.identity.subclasses import untyped_storage

_use_count = getattr(torch._C, "_storage_Use_Count", None)
_UNSHARED = 2  # references to a storage: by the tensor, and by the Python object of the storage in our hands
_address = attrgetter("_cdata")
_version = attrgetter("_version")
_is_cpu = attrgetter("is_cpu")
# An older torch does not tell: nothing is carried over then, and all is measured anew.
_resizable: Callable[[torch.UntypedStorage], bool] = getattr(torch.UntypedStorage, "resizable", lambda storage: False)
_is_in_shared_memory = torch.UntypedStorage.is_shared  # with another process


def has_aliases(storage: torch.UntypedStorage) -> bool | None:
    """Tell whether more than one tensor shows a storage; None where torch cannot tell."""
    return None if _use_count is None else _use_count(storage._cdata) > _UNSHARED


def have_no_aliases(addresses: Sequence[int]) -> bool:
    """Tell whether each of these storages is shown by one tensor alone; their Python objects must be alive."""
    return _use_count is not None and max(map(_use_count, addresses), default=0) <= _UNSHARED


class CarriedTensor:
    """A tensor at a version, with the fingerprint that an earlier step measured."""

    __slots__ = ("fingerprint", "known", "version")

    def __init__(self, known: KnownTensor, version: int, fingerprint: Lasting) -> None:
        self.known = known
        self.version = version
        self.fingerprint = fingerprint

    def holds(self, tensor: torch.Tensor, layout: Layout, version: int) -> bool:
        """Tell whether the fingerprint is that of a tensor with this layout and version."""
        return self.version == version and self.known.layout is layout and self.known.is_at(tensor)


class CarriedOver:
    """The tensors that were measured after the last write to them, by storage."""

    __slots__ = ("_coming", "by_storage", "storage_of")

    def __init__(self) -> None:
        self.storage_of: dict[int, int] = {}  # address of the storage, by the tensor's id
        self._coming: dict[int, CarriedTensor] = {}  # of the running step, for the next one
        self.by_storage: dict[int, CarriedTensor] = {}  # of the steps before

    def __bool__(self) -> bool:
        return bool(self.by_storage or self._coming)

    def known(self, tensor: torch.Tensor) -> KnownTensor | None:
        """Return the entry of a tensor that an earlier step measured and nothing has written to since, else None."""
        carried = self.by_storage.get(self.storage_of.get(id(tensor), 0))
        if carried is not None and carried.known.is_at(tensor) and carried.version == tensor._version:
            return carried.known
        return None

    def add(
        self,
        recorder: Recorder,
        tensors: Sequence[torch.Tensor],
        known: Sequence[KnownTensor],
        numbers: Sequence[int],
    ) -> None:
        """Carry over tensors as they are now, measured under these numbers of the running step, where that is safe."""
        storages = list(map(untyped_storage, tensors))
        addresses = list(map(_address, storages))
        if not (have_no_aliases(addresses) and _are_private(tensors, storages)):
            if len(tensors) > 1:  # tried one by one: it may be safe for some
                for tensor, known_tensor, number in zip(tensors, known, numbers):
                    self.add(recorder, (tensor,), (known_tensor,), (number,))
            return
        carried = zip(addresses, known, map(_version, tensors), recorder.lasting(numbers))
        self._coming.update(
            (address, CarriedTensor(known_tensor, version, fingerprint))
            for address, known_tensor, version, fingerprint in carried
            if fingerprint is not None
        )
        self.storage_of.update(zip(map(id, tensors), addresses))

    def discard(self, address: int) -> None:
        """Measure the content of this storage anew."""
        self.by_storage.pop(address, None)
        self._coming.pop(address, None)

    def discard_all(self, addresses: Collection[int | None]) -> None:
        """Measure the content of these storages anew."""
        for carried in (self.by_storage, self._coming):
            if carried:
                deque(map(carried.pop, addresses, repeat(None)), 0)  # type: ignore[arg-type]  # a loop in C

    def clear(self) -> None:
        """Measure everything anew."""
        self.by_storage.clear()
        self._coming.clear()

    def new_step(self) -> Collection[int]:
        """Begin a step; return the storages of the tensors that it can refer to."""
        both = {**self.by_storage, **self._coming}
        self._coming = {}
        self.by_storage = {address: carried for address, carried in both.items() if carried.known.tensor() is not None}
        if len(self.storage_of) > 2 * len(self.by_storage):
            self.storage_of = {id(carried.known.tensor()): address for address, carried in self.by_storage.items()}
        return self.by_storage.keys()


def _are_private(tensors: Iterable[torch.Tensor], storages: Sequence[torch.UntypedStorage]) -> bool:
    """Tell whether no numpy array and no other process shares the memory of these storages."""
    return all(map(_resizable, storages)) and not any(
        map(_is_in_shared_memory, compress(storages, map(_is_cpu, tensors)))
    )
