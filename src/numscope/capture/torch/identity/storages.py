"""Writes to storages, with or without a new version: they decide whether cached fingerprints still hold."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from itertools import repeat
from operator import attrgetter
from typing import TypeVar

import torch

from numscope.capture.recording.interned import Strings
from numscope.capture.torch.identity.carried_over import CarriedOver, has_aliases, have_no_aliases
from numscope.capture.torch.identity.known_tensors import KnownTensor
from numscope.capture.torch.identity.subclasses import PLAIN, untyped_storage, unwrap
from numscope.fingerprint.columns import Unmeasured

_GENERATIONS = itertools.count(1, 2)  # odd, so that none is a storage's address
LARGE = 8 << 10  # bytes: what ever so many smaller ones leave between two hand-overs is below the next number
_LEFT = 64 << 20  # bytes of storages that may be gone without their memory being one piece again
_ANY = -1  # a stale version that stands for the storage's version at the next look
_NO_STORAGE = (RuntimeError, NotImplementedError)  # raised where a tensor has no storage, or no version counter
is_gone: Callable[[int], object] = torch.UntypedStorage._expired
free: Callable[[int], None] = torch.UntypedStorage._free_weak_ref
_address = attrgetter("_cdata")
_version = attrgetter("_version")
_Value = TypeVar("_Value")


class Storages:
    """The storages of the running step, each known by its address.

    A weak reference to each keeps its address from being given to another; it keeps no data alive. But on the host it lies
    in between the data: memory around it that is free cannot be joined. So those of large storages are let go early.
    """

    __slots__ = (
        "_generations",
        "_large",
        "_large_bytes",
        "_optimizer_versions",
        "_past_generations",
        "_stale_versions",
        "_strings",
        "_unversioned",
        "_weak_refs",
        "_wrapper_versions",
        "cached",
        "carried_over",
        "uninitialized",
    )

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        self.cached: dict[int, KnownTensor] = {}  # by the tensor's id
        self.carried_over = CarriedOver()
        self._weak_refs: dict[int, int] = {}
        self._large: list[int] = []  # addresses of large storages on the host
        self._large_bytes = 0  # of those that came since the last look at them
        # Of storages that calls were seen to write to: a number that stands for the address in content keys. Each write
        # gives a new one, as the version need not rise with it, or may be set back.
        self._generations: dict[int, int] = {}
        self._past_generations: set[int] = set()
        self._unversioned: set[int] = set()  # writes to them need not raise the version: measured at each look
        self._stale_versions: dict[int, int | None] = {}  # a version after which an unseen write is possible
        self.uninitialized: set[int] = set()  # nothing was written to them yet
        self._optimizer_versions: dict[int, int] = {}  # the version at the last write by an optimizer's operator
        self._wrapper_versions: dict[int, int | None] = {}  # of the tensor subclass around it

    # Writes that raise no version ---------------------------------------------------------------------------------

    def mark_unversioned(self, *tensors: torch.Tensor, storage_only: bool = False) -> None:
        """Measure these tensors at each look: something may write to their storages without a new version.

        With `storage_only`, the storage object alone was handed out: that is how memory is freed and allocated anew.
        """
        for tensor in tensors:
            try:
                plain = tensor if type(tensor) in PLAIN else unwrap(tensor, self._strings)[0]
                storage = untyped_storage(plain)
            except (*_NO_STORAGE, Unmeasured):
                continue
            address = self._mark_unversioned(storage)
            if not storage_only:
                self.uninitialized.discard(address)
            elif storage.nbytes() == 0 and tensor.numel():
                self._stale_versions[address] = version_of(tensor)
                self.uninitialized.add(address)

    def mark_all_unversioned(self, tensors: Sequence[torch.Tensor]) -> None:
        """Mark many tensors as `mark_unversioned` does, each query in one loop over all of them."""
        try:
            storages = list(map(untyped_storage, tensors)) if PLAIN.issuperset(map(type, tensors)) else None
        except _NO_STORAGE:
            storages = None
        if storages is None:
            self.mark_unversioned(*tensors)
            self.cached.clear()
            return
        addresses = list(map(_address, storages))
        self._hold_addresses(addresses, storages)
        self._unversioned.update(addresses)
        self.uninitialized.difference_update(addresses)
        self.carried_over.discard_all(addresses)
        _drop(self._optimizer_versions, addresses)
        if addresses:
            self.cached.clear()

    def mark_aliases_unversioned(self, tensor: torch.Tensor) -> None:
        """Mark a tensor that a call may write to, where another tensor shows its storage with its own version counter.

        Such a tensor is a `.data` that somebody holds, or a flat buffer that parameters lie in; a view shares its base's
        counter.
        """
        if tensor._base is None and tensor.grad_fn is None:
            try:
                aliased = has_aliases(untyped_storage(tensor))
            except _NO_STORAGE:
                return
            if aliased:
                self.mark_unversioned(tensor)

    def _mark_unversioned(self, storage: torch.UntypedStorage) -> int:
        address: int = storage._cdata
        self._hold_address(address, storage)
        self._unversioned.add(address)
        self._optimizer_versions.pop(address, None)
        self.carried_over.discard(address)
        self.cached.clear()
        return address

    # Writes -------------------------------------------------------------------------------------------------------

    def note_write(self, tensor: torch.Tensor, by_optimizer: bool = False) -> None:
        """Forget the content of a tensor that a call has written to, though its version may not have risen, or not yet.

        The tensor is measured at each look until its version rises, unless an optimizer's operator was the writer: see
        `optimizer_operators.py`.
        """
        if type(tensor) not in PLAIN:
            try:
                tensor, _ = unwrap(tensor, self._strings)
            except Unmeasured:
                return
            by_optimizer = False
        try:
            storage = untyped_storage(tensor)
            version = tensor._version
        except _NO_STORAGE:
            return
        address: int = storage._cdata
        self._hold_address(address, storage)
        self.carried_over.discard(address)
        self._begin_generation(address)
        self.uninitialized.discard(address)
        if by_optimizer:
            self._optimizer_versions[address] = version
            self._stale_versions.pop(address, None)
        else:
            self._optimizer_versions.pop(address, None)
            self._stale_versions[address] = version
        if has_aliases(storage) is False:
            self.cached.pop(id(tensor), None)
        else:
            self.cached.clear()
            self.mark_aliases_unversioned(tensor)

    def note_writes(self, tensors: Sequence[torch.Tensor]) -> None:
        """Forget the contents of tensors that a call has written to, as `note_write` does."""
        if len(tensors) < 2 or self.note_writes_at_once(tensors) is None:
            for tensor in tensors:
                self.note_write(tensor)

    def note_writes_at_once(self, tensors: Sequence[torch.Tensor], by_optimizer: bool = False) -> Sequence[int] | None:
        """Do as `note_write` for many tensors; return their versions, or None where they must be noted one by one."""
        if not PLAIN.issuperset(map(type, tensors)):
            return None
        try:
            storages = list(map(untyped_storage, tensors))
            versions = list(map(_version, tensors))
        except _NO_STORAGE:
            return None
        addresses = list(map(_address, storages))
        if not have_no_aliases(addresses):
            return None
        self._hold_addresses(addresses, storages)
        self.carried_over.discard_all(addresses)
        self._begin_generations(addresses)
        self.uninitialized.difference_update(addresses)
        if by_optimizer:
            self._optimizer_versions.update(zip(addresses, versions))
            _drop(self._stale_versions, addresses)
        else:
            self._stale_versions.update(zip(addresses, versions))
            _drop(self._optimizer_versions, addresses)
        _drop(self.cached, map(id, tensors))
        return versions

    def note_possible_writes(self, tensors: Sequence[torch.Tensor]) -> None:
        """Forget the contents of tensors that may have been written to without a new version."""
        addresses = addresses_of(tensors)
        if not self._weak_refs.keys().isdisjoint(addresses):
            self.note_writes([tensor for tensor, address in zip(tensors, addresses) if address in self._weak_refs])

    def note_foreign_use(self, tensors: Sequence[torch.Tensor]) -> None:
        """Forget the contents of tensors that were passed to code outside torch: it may have written to them.

        Uninitialised memory, as far as torch can tell, is measured at each look anyway.
        """
        if self.uninitialized:
            tensors = [tensor for tensor in tensors if address_of(tensor) not in self.uninitialized]
        self.note_possible_writes(tensors)

    def _note_wrapper(self, plain: torch.Tensor, version: int | None) -> None:
        """Forget the content of the tensor inside a subclass where the subclass has a new version.

        A write through a DTensor raises the version of the DTensor alone, not that of the tensor inside.
        """
        address = address_of(plain)
        if address is None:
            return
        before, self._wrapper_versions[address] = self._wrapper_versions.get(address, version), version
        if before != version:
            self._begin_generation(address)
            self.carried_over.discard(address)
            self.cached.clear()

    def _begin_generation(self, address: int) -> None:
        """Forget the content of a storage."""
        self._past_generations.add(self._generations.get(address, address))
        self._generations[address] = next(_GENERATIONS)

    def _begin_generations(self, addresses: Collection[int]) -> None:
        """Forget the contents of these storages."""
        self._past_generations.update(map(self._generations.get, addresses, addresses))
        self._generations.update(zip(addresses, _GENERATIONS))

    def _hold_address(self, address: int, storage: torch.UntypedStorage) -> None:
        if address not in self._weak_refs:
            self._weak_refs[address] = storage._weak_ref()  # type: ignore[assignment]  # a number
            if (size := storage.nbytes()) >= LARGE and storage.device.type == "cpu":
                self.hold_large(address, size)

    def hold_large(self, address: int, size: int) -> None:
        """Remember a large storage on the host; forget those that are gone where there may be many."""
        self._large.append(address)
        self._large_bytes += size
        if self._large_bytes > _LEFT:
            self._forget_dead_large()

    def _forget_dead_large(self) -> None:
        """Forget the large storages that are gone; another one at such an address begins a new generation."""
        held = [(address, self._weak_refs[address]) for address in self._large if address in self._weak_refs]
        dead = {address: reference for address, reference in held if is_gone(reference)}
        self._large, self._large_bytes = [address for address, _ in held if address not in dead], 0
        self._begin_generations(dead)
        self._forget_facts(dead.keys())
        for address, reference in dead.items():
            del self._weak_refs[address]
            free(reference)

    def _forget_facts(self, addresses: Set[int]) -> None:
        """Forget what is known of storages that are gone."""
        self._unversioned -= addresses
        self.uninitialized -= addresses
        self.carried_over.discard_all(addresses)
        for versions in (self._stale_versions, self._optimizer_versions, self._wrapper_versions):
            for address in addresses & versions.keys():
                del versions[address]

    def _hold_addresses(self, addresses: Sequence[int], storages: Sequence[torch.UntypedStorage]) -> None:
        held = self._weak_refs
        for address, storage in zip(addresses, storages):
            if address not in held:
                held[address] = storage._weak_ref()  # type: ignore[assignment]

    def _is_trusted(self, address: int, version: int) -> bool:
        """Tell whether a storage at this version has always had one content."""
        return address not in self._unversioned and self._stale_versions.get(address) != version

    # Uninitialised memory -----------------------------------------------------------------------------------------

    def mark_uninitialized(self, tensor: torch.Tensor) -> None:
        """Remember that nothing was written to this tensor yet.

        While its version stays, only a kernel outside torch can have written to it: it is measured at each look.
        """
        try:
            storage = untyped_storage(tensor)
            address: int = storage._cdata
            self.carried_over.discard(address)
            self._optimizer_versions.pop(address, None)
            version = tensor._version
        except _NO_STORAGE:
            return
        self._hold_address(address, storage)
        self._stale_versions[address] = version
        self.uninitialized.add(address)

    def reallocated(self, storage: torch.UntypedStorage) -> None:
        """Remember that a storage was allocated anew, and that nothing was written to it yet: its version did not rise."""
        address = self._mark_unversioned(storage)
        self._stale_versions[address] = _ANY
        self.uninitialized.add(address)

    def is_uninitialized(self, tensor: torch.Tensor) -> bool:
        """Tell whether nothing was written to a tensor since its memory was allocated, as far as torch knows."""
        return bool(self.uninitialized) and self.was_uninitialized(tensor, version_of(tensor))

    def was_uninitialized(self, tensor: torch.Tensor, version: int | None) -> bool:
        """Tell whether nothing had been written to a tensor when it had this version."""
        address = address_of(tensor)
        if address is None or address not in self.uninitialized:
            return False
        if self._stale_versions[address] == _ANY:
            self._stale_versions[address] = version
        return self._stale_versions[address] == version

    # Optimizers' operators, and fingerprints carried over --------------------------------------------------------------

    @property
    def has_optimizer_writes(self) -> bool:
        """Tell whether any storage was last written to by an optimizer's operator."""
        return bool(self._optimizer_versions)

    def forget_optimizer_writes(self) -> None:
        """Measure anew the tensors that an optimizer's operators have written."""
        if self._optimizer_versions:
            self._begin_generations(self._optimizer_versions)
            self._stale_versions = {**self._optimizer_versions, **self._stale_versions}
            self._optimizer_versions.clear()
            self.cached.clear()

    def not_written_by_optimizer(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the tensors whose last write was not by an optimizer's operator."""
        if not self._optimizer_versions:
            return tensors
        versions = map(self._optimizer_versions.get, addresses_of(tensors))  # type: ignore[arg-type]
        return [tensor for tensor, version in zip(tensors, versions) if version is None or version != tensor._version]

    @property
    def carries_over(self) -> bool:
        """Tell whether the next step could refer to any fingerprint of this step or an earlier one."""
        return bool(self.carried_over)

    def drop_carried_over(self, *tensors: torch.Tensor) -> None:
        """Measure these tensors anew in the next step: something writes to them, or may."""
        if self.carried_over:
            self.carried_over.discard_all(addresses_of(tensors))

    def drop_all_carried_over(self) -> None:
        """Measure everything anew in the next step."""
        self.carried_over.clear()
        self.forget_optimizer_writes()


def address_of(tensor: torch.Tensor) -> int | None:
    """Return the address of a tensor's storage, or None where it has none."""
    try:
        return int(untyped_storage(tensor)._cdata)
    except _NO_STORAGE:
        return None


def addresses_of(tensors: Sequence[torch.Tensor]) -> Sequence[int | None]:
    """Return the address of each tensor's storage, None where it has none."""
    try:
        return list(map(_address, map(untyped_storage, tensors)))
    except _NO_STORAGE:
        return [address_of(tensor) for tensor in tensors]


def version_of(tensor: torch.Tensor) -> int | None:
    """Return a tensor's version, or None where torch keeps none."""
    try:
        return tensor._version
    except RuntimeError:
        return None


def _drop(values: dict[int, _Value], keys: Iterable[int]) -> None:
    """Delete the values of these keys."""
    if values:
        deque(map(values.pop, keys, repeat(None)), 0)  # a loop in C
