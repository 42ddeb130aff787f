"""What may have been written to a storage, seen or unseen: whether what was measured of it still holds."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

import torch

from numscope.capture.interned import Strings
from numscope.capture.torch.identity.carried_over import Settled, are_alone, is_shared
from numscope.capture.torch.identity.subclasses import PLAIN, untyped_storage, unwrap
from numscope.capture.unmeasured import Unmeasured

_KEYS = itertools.count(1, 2)  # no storage has one of these: an address is even
_ANY = -1  # the version of a storage's tensors, whatever it is
_address = attrgetter("_cdata")
_version = attrgetter("_version")
# A tensor's Python object; its version, address and number; and its form and place, where views of it may be asked for.
Known = tuple[weakref.ref[torch.Tensor], int, int, int, Any]
UNSEEN: Any = (type(None), 0, 0, -1, None)  # the same of an object that was not seen: none is what it stands for


class Storages:
    """The storages of the running step."""

    __slots__ = (
        "_keys", "_left", "_past", "_storages", "_strings", "_untrusted", "_volatile", "_wrapped", "blanks", "objects",
        "settled",
    )  # fmt: skip

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        # Numbers by the tensor's Python object: it lives as long as the tensor does, so a weak reference tells.
        self.objects: dict[int, Known] = {}
        self._storages: dict[int, Any] = {}
        # What storages are known by since an operator has written to them, as their versions may not say so or be put back.
        self._keys: dict[int, int] = {}
        self._past: set[int] = set()  # what they were known by before
        self._left: dict[int, int] = {}  # storages that an optimizer's operators have written to → the version then
        self._untrusted: set[int] = set()
        # Storages that may hold something else though their version is still this one, and those that hold nothing yet.
        self._volatile: dict[int, int | None] = {}
        self.blanks: set[int] = set()
        self.settled = Settled()
        self._wrapped: dict[int, int | None] = {}  # storages inside of subclasses' tensors → the version of those

    def distrust(self, *tensors: torch.Tensor, storage_only: bool = False) -> None:
        """Measure the storages of these tensors anew each time: something may write to them unseen.

        With `storage_only` the storage object was asked for, which is how memory is freed and given anew, not written.
        """
        for tensor in tensors:
            try:
                plain = tensor if type(tensor) in PLAIN else unwrap(tensor, self._strings)[0]
                storage = untyped_storage(plain)
            except (RuntimeError, NotImplementedError, Unmeasured):
                continue
            address = self._distrust(storage)
            if not storage_only:
                self.blanks.discard(address)
            elif storage.nbytes() == 0 and tensor.numel():
                self._volatile[address] = version_of(tensor)
                self.blanks.add(address)

    def distrust_all(self, tensors: Sequence[torch.Tensor]) -> None:
        """Do the same as `distrust` for many tensors, with one question at a time for all of them."""
        if not PLAIN.issuperset(map(type, tensors)):
            self.distrust(*tensors)
            self.objects.clear()
            return
        try:
            storages = list(map(untyped_storage, tensors))
        except (RuntimeError, NotImplementedError):
            self.distrust(*tensors)
            return
        addresses = list(map(_address, storages))
        self._know_all(addresses, storages)
        self._untrusted.update(addresses)
        self.blanks.difference_update(addresses)
        self.settled.discard_all(addresses)
        if self._left:
            _drop(self._left, addresses)
        if addresses:
            self.objects.clear()

    def _distrust(self, storage: Any) -> int:
        address: int = storage._cdata
        if address not in self._storages:
            self._storages[address] = storage._weak_ref()
        self._untrusted.add(address)
        if self._left:
            self._left.pop(address, None)
        if self.settled:
            self.settled.discard(address)
        if self.objects:
            self.objects.clear()
        return address

    def mark_blank(self, tensor: torch.Tensor) -> None:
        """Remember that this tensor's memory is not written yet.

        While its version stays, only a kernel that tells nobody can have written to it: it is measured each time.
        """
        address = self._doubt(tensor)
        if address is not None:
            self.blanks.add(address)

    def reallocated(self, storage: Any) -> None:
        """Remember that a storage was given new memory, which is not written yet: its version does not tell."""
        address = self._distrust(storage)
        self._volatile[address] = _ANY
        self.blanks.add(address)

    def overwritten(self, tensor: torch.Tensor, by_optimizer: bool = False) -> None:
        """A call has written to this tensor, though its version may not say so, or not yet.

        It is measured each time while its version stays, if not an operator of an optimizer's step has written: see `left.py`.
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
        except (RuntimeError, NotImplementedError):
            return
        address: int = storage._cdata
        self._know(address, storage)
        self.settled.discard(address)
        self._renew(address)
        self.blanks.discard(address)
        if by_optimizer:
            self._left[address] = version
            self._volatile.pop(address, None)
        else:
            self._left.pop(address, None)
            self._volatile[address] = version
        if is_shared(storage) is False:
            self.objects.pop(id(tensor), None)
        else:
            self.objects.clear()
            self.doubt_others(tensor)

    def all_overwritten(self, tensors: Sequence[torch.Tensor], by_optimizer: bool = False) -> Sequence[int] | None:
        """Do the same as `overwritten` for many tensors; return their versions, or None where each must be told of."""
        if not PLAIN.issuperset(map(type, tensors)):
            return None
        try:
            storages = list(map(untyped_storage, tensors))
            versions = list(map(_version, tensors))
        except (RuntimeError, NotImplementedError):
            return None
        addresses = list(map(_address, storages))
        if not are_alone(addresses):
            return None
        self._know_all(addresses, storages)
        self.settled.discard_all(addresses)
        self._renew_all(addresses)
        if self.blanks:
            self.blanks.difference_update(addresses)
        if by_optimizer:
            self._left.update(zip(addresses, versions))
            _drop(self._volatile, addresses)
        else:
            self._volatile.update(zip(addresses, versions))
            _drop(self._left, addresses)
        _drop(self.objects, map(id, tensors))
        return versions

    def _written_through(self, plain: torch.Tensor, version: int | None) -> None:
        """Know nothing of the tensor inside a subclass's, if that has another version now.

        What is written through a DTensor raises the version of that alone, not that of the tensor inside.
        """
        address = address_of(plain)
        if address is None:
            return
        before, self._wrapped[address] = self._wrapped.get(address, version), version
        if before != version:
            self._renew(address)
            self.settled.discard(address)
            self.objects.clear()

    def _renew_all(self, addresses: Collection[int]) -> None:
        """Know nothing any more of what lies in these storages."""
        self._past.update(map(self._keys.get, addresses, addresses))
        self._keys.update(zip(addresses, _KEYS))

    def _renew(self, address: int) -> None:
        """Know nothing any more of what lies in a storage."""
        self._past.add(self._keys.get(address, address))
        self._keys[address] = next(_KEYS)

    def _know(self, address: int, storage: Any) -> None:
        """Hold a storage's address, so that no other storage gets it."""
        if address not in self._storages:
            self._storages[address] = storage._weak_ref()

    def _know_all(self, addresses: Sequence[int], storages: Sequence[Any]) -> None:
        """Hold the addresses of these storages."""
        known = self._storages
        for address, storage in zip(addresses, storages):
            if address not in known:
                known[address] = storage._weak_ref()

    def written_unseen(self, tensors: Sequence[torch.Tensor]) -> None:
        """Something may have written to these tensors that tells no versions."""
        addresses = addresses_of(tensors)
        if self._storages.keys().isdisjoint(addresses):  # nothing is known of them
            return
        known = self._storages
        self.were_overwritten([tensor for tensor, address in zip(tensors, addresses) if address in known])

    def given_to_others(self, tensors: Sequence[torch.Tensor]) -> None:
        """What is not torch's own was given these tensors: it may have written to them, and told nobody.

        Memory that nothing was written to yet, as far as torch knows, is measured at each look anyway.
        """
        if self.blanks:
            tensors = [tensor for tensor in tensors if address_of(tensor) not in self.blanks]
        self.written_unseen(tensors)

    def were_overwritten(self, tensors: Sequence[torch.Tensor]) -> None:
        """A call has written to these tensors: see `overwritten`."""
        if len(tensors) < 2 or self.all_overwritten(tensors) is None:
            for tensor in tensors:
                self.overwritten(tensor)

    def doubt_others(self, tensor: torch.Tensor) -> None:
        """A call may write to this tensor: what else looks at its memory and counts versions of its own can't be trusted.

        That is a `.data` which somebody holds, or a flat buffer in which parameters lie; a view counts with its base.
        """
        if tensor._base is None and tensor.grad_fn is None:
            try:
                shared = is_shared(untyped_storage(tensor))
            except (RuntimeError, NotImplementedError):
                return
            if shared:
                self.distrust(tensor)

    def _doubt(self, tensor: torch.Tensor) -> int | None:
        """Measure a tensor each time while its version stays; return what its storage is known by."""
        try:
            storage = untyped_storage(tensor)
            self.settled.discard(storage._cdata)
            self._left.pop(storage._cdata, None)
            version = tensor._version
        except (RuntimeError, NotImplementedError):
            return None
        address: int = storage._cdata
        self._know(address, storage)
        self._volatile[address] = version
        return address

    def is_blank(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor's memory was not written since it was made, as far as torch knows."""
        return bool(self.blanks) and self.was_blank(tensor, version_of(tensor))

    def was_blank(self, tensor: torch.Tensor, version: int | None) -> bool:
        """Tell whether a tensor's memory was not written when it had this version."""
        address = address_of(tensor)
        if address not in self.blanks:
            return False
        if self._volatile[address] == _ANY:
            self._volatile[address] = version
        return self._volatile[address] == version

    @property
    def any_left(self) -> bool:
        """Tell whether an optimizer's operators are known to have written to anything."""
        return bool(self._left)

    def forget_left(self) -> None:
        """Measure anew what an optimizer's operators have left."""
        if self._left:
            self._renew_all(self._left)
            self._volatile = {**self._left, **self._volatile}
            self._left.clear()
            self.objects.clear()

    def unsettle(self, *tensors: torch.Tensor) -> None:
        """Measure what lies in the memory of these tensors anew in the next step: it is written to, or may be."""
        if self.settled:
            self.settled.discard_all(addresses_of(tensors))

    def unsettle_all(self) -> None:
        """Measure everything anew in the next step."""
        self.settled.clear()
        self.forget_left()


def address_of(tensor: torch.Tensor) -> int | None:
    """Return what a tensor's storage is known by, or None where it has none."""
    try:
        return int(untyped_storage(tensor)._cdata)
    except (RuntimeError, NotImplementedError):
        return None


def addresses_of(tensors: Sequence[torch.Tensor]) -> Sequence[int | None]:
    """Return the same of several tensors."""
    try:
        return list(map(_address, map(untyped_storage, tensors)))
    except (RuntimeError, NotImplementedError):
        return [address_of(tensor) for tensor in tensors]


def version_of(tensor: torch.Tensor) -> int | None:
    """Return a tensor's version, or None where torch keeps none."""
    try:
        return tensor._version
    except RuntimeError:
        return None


def _drop(known: dict[int, Any], keys: Iterable[int]) -> None:
    """Forget what is known under these keys."""
    if known:
        deque(map(known.pop, keys, repeat(None)), 0)  # which only calls it, for each
