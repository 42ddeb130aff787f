"""Many tensors at once, as an optimizer has them: a question is asked of all of them before the next one.

An operator of a fused optimizer has hundreds of tensors, in every step the same ones. What is done for one tensor in
`tensors.py` is done here for a list, by calls that go through it without Python's own loops; where one tensor of it
needs a way of its own, all of them take that.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from itertools import compress, repeat
from operator import attrgetter, is_, not_
from typing import Any

import torch

from numscope.capture.columns import Lasting
from numscope.capture.torch.forms import VERSION, Form, form_of, place_of
from numscope.capture.torch.plain import PLAIN, data_ptr, untyped_storage
from numscope.capture.torch.storages import address_of, addresses_of, version_of
from numscope.capture.torch.tensors import Tensors
from numscope.capture.unmeasured import Unmeasured

# What torch has told of a tensor: itself, where its data are, its storage, and its form.
Told = tuple[weakref.ref[torch.Tensor], int, int, Any, Form]
Asked = dict[int, Told]  # by the tensor's id
_FAULTS = (RuntimeError, NotImplementedError, Unmeasured)
_ref = weakref.ref
_address = attrgetter("_cdata")
_version = attrgetter("_version")
_attributes = attrgetter("shape", "dtype", "device")
_may_put_off = attrgetter("may_put_off")
_offset = torch._C.TensorBase.storage_offset
_is_contiguous = torch._C.TensorBase.is_contiguous


class Lists(Tensors):
    """The tensors of the running step, one at a time or many.

    `asked` holds what torch has told already, since only torch's own code and ours runs: where a tensor's data lie, and its
    form, change by the user's code alone.
    """

    def numbers(self, tensors: Sequence[torch.Tensor], asked: Asked | None = None) -> Sequence[int] | None:
        """Return the numbers of many tensors as `number` does for one, or None where it must be asked of each."""
        if not (self._recorder.takes_many and PLAIN.issuperset(map(type, tensors))):
            return None
        try:
            versions = tuple(map(_version, tensors))
            places = tuple(map(data_ptr, tensors))
        except RuntimeError:
            return None
        seen: list[Any] = list(map(self.objects.get, map(id, tensors)))
        known = [one is not None for one in seen]
        if not any(known):
            return self._look_up_all(tensors, versions, places, asked)
        references, of_versions, of_places, found = zip(*compress(seen, known))
        those, now, there = _chosen(known, tensors, versions, places)
        same = of_versions == now and of_places == there  # not given other data by `.data = …`
        if not (same and all(map(is_, [one() for one in references], those))):
            columns = zip(seen, tensors, versions, places)
            known = [one is not None and _is(one, *rest) for one, *rest in columns]
            found = tuple(one[3] for one in compress(seen, known))
        if all(known):
            return found
        tensors, versions, places = _chosen(map(not_, known), tensors, versions, places)
        return _merged(known, found, self._look_up_all(tensors, versions, places, asked))

    def _look_up_all(
        self, tensors: Sequence[torch.Tensor], versions: Sequence[int], places: Sequence[int], asked: Asked | None
    ) -> Sequence[int] | None:
        """Return the numbers of tensors whose Python objects do not tell them."""
        try:
            references, _, addresses, forms, known = self._ask(tensors, places, asked)
        except _FAULTS:
            return None
        keys: Any = map(self._keys.get, addresses, addresses)
        at = [key + (version << VERSION) for key, version in zip(keys, versions)]
        trusted = True
        if not (self._untrusted.isdisjoint(addresses) and self._volatile.keys().isdisjoint(addresses)):
            untrusted, volatile = self._untrusted, self._volatile
            trust = [one not in untrusted and volatile.get(one) != now for one, now in zip(addresses, versions)]
            trusted = trust[0]
            if trust.count(trusted) < len(trust):
                return None
        found = [form.seen.get(place, -1) for form, place in zip(known, at)] if trusted else [-1] * len(at)
        numbers: Sequence[int] | None = found
        if -1 in found:
            columns: Any = (tensors, addresses, versions, places, forms, known, at)
            seen = [number >= 0 for number in found]
            if any(seen):
                columns = _chosen(map(not_, seen), *columns)
                found = list(compress(found, seen))
            numbers = _merged(seen, found, self._add_all(trusted, *columns))
        if trusted and numbers is not None:
            self.objects.update(zip(map(id, tensors), zip(references, versions, places, numbers)))
        return numbers

    def _add_all(
        self, trusted: bool, tensors: Sequence[torch.Tensor], addresses: Sequence[int], versions: Sequence[int],
        places: Sequence[int], forms: Sequence[Any], known: Sequence[Form], at: Sequence[int],
    ) -> Sequence[int] | None:  # fmt: skip
        """Number tensors that were not seen, and measure those that no earlier step has."""
        if len(set(at)) < len(at):  # what is measured of one may be known of another
            return None
        lasting: Sequence[Lasting | None] | None = None
        if trusted and not self._settled.known.keys().isdisjoint(addresses):
            lasting = self._settled.those(tensors, addresses, versions, places, forms)
        if not trusted:
            for form, place in zip(known, at):
                form.rows.pop(place, None)
        numbers = self._recorder.many(tensors, known, at if trusted else None, lasting)
        for form, place, number in zip(known, at, numbers):
            form.seen[place] = number
        return numbers

    def _ask(self, tensors: Sequence[torch.Tensor], places: Sequence[int], asked: Asked | None) -> tuple[Any, ...]:
        """Return what torch tells of tensors as columns, asking it of those that it was not; `places`: of their data."""
        if asked is None:
            return tuple(zip(*self._ask_torch(tensors, places)))
        ids = list(map(id, tensors))
        if not asked.keys() >= set(ids):
            new = [one not in asked for one in ids]
            told = self._ask_torch(*_chosen(new, tensors, places))
            asked.update(zip(compress(ids, new), told))
        columns = tuple(zip(*map(asked.__getitem__, ids)))
        if columns[1] != places or not all(map(is_, [one() for one in columns[0]], tensors)):
            told = self._ask_torch(tensors, places)
            asked.update(zip(ids, told))
            columns = tuple(zip(*told))
        return columns

    def _ask_torch(self, tensors: Sequence[torch.Tensor], places: Sequence[int]) -> Sequence[Told]:
        storages = list(map(untyped_storage, tensors))
        addresses = list(map(_address, storages))
        if all(map(_is_contiguous, tensors)):
            shapes, dtypes, devices = zip(*map(_attributes, tensors))
            forms = list(zip(shapes, repeat(None), dtypes, devices, map(_offset, tensors)))
        else:
            forms = list(map(form_of, tensors))
        known: list[Any] = list(map(self._forms.get, forms))
        if None in known:
            known = [self._forms.get(form) or self._learn(tensor, form) for tensor, form in zip(tensors, forms)]
        if self._complex or any(map(_may_put_off, known)):
            known = [
                form.put_off(form.is_complex and tensor.is_conj(), tensor.is_neg())
                if form.may_put_off or self._complex
                else form
                for tensor, form in zip(tensors, known)
            ]
        self._know_all(addresses, storages)
        return list(zip(map(_ref, tensors), places, addresses, forms, known))

    def _told(self, tensors: Sequence[torch.Tensor], asked: Asked | None) -> tuple[Any, ...] | None:
        """Return what torch tells of tensors as columns, the last one their versions; None where it can't of some."""
        if not PLAIN.issuperset(map(type, tensors)):
            return None
        try:
            versions = tuple(map(_version, tensors))
            return *self._ask(tensors, tuple(map(data_ptr, tensors)), asked), versions
        except _FAULTS:
            return None

    def settle(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int], asked: Asked | None = None) -> None:
        """Let the next step refer to what was measured under these numbers, where the tensors are the same then."""
        measured = [number >= 0 for number in numbers]
        if not all(measured):
            tensors, numbers = _chosen(measured, tensors, numbers)
        if not tensors:
            return
        told = self._told(tensors, asked)
        if told is None:
            if len(tensors) > 1:
                for tensor, number in zip(tensors, numbers):
                    self.settle((tensor,), (number,))
            return
        _, _, _, forms, known, _ = told
        whole = list(map(is_, known, map(self._forms.get, forms)))  # torch has put nothing off
        if not all(whole):
            tensors, forms, numbers = _chosen(whole, tensors, forms, numbers)
        self._settled.add(self._recorder, tensors, forms, numbers)

    def left(self, tensors: Sequence[torch.Tensor], asked: Asked | None = None) -> Sequence[int]:
        """Return under which numbers tensors were measured after the optimizer's operators that wrote to them last, or -1."""
        told = self._told(tensors, asked) if tensors else None
        if told is None:
            return [-1] if len(tensors) == 1 else [number for one in tensors for number in self.left((one,))]
        _, _, addresses, _, known, versions = told
        columns = zip(known, map(self._keys.get, addresses), map(self._left.get, addresses), versions)
        return [
            form.seen.get(key + (version << VERSION), -1) if left == version else -1
            for form, key, left, version in columns
        ]

    def not_left(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return those of the tensors that were not written to by an optimizer's operator last."""
        if not self._left:
            return tensors
        both = zip(tensors, map(self._left.get, addresses_of(tensors)))  # type: ignore[arg-type]
        return [tensor for tensor, left in both if left is None or left != tensor._version]

    def vouch(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> None:
        """Know tensors by these numbers, under which they were just measured, though their versions say nothing."""
        if self._volatile:
            for tensor, address, number in zip(tensors, addresses_of(tensors), numbers):
                if address in self._volatile and number >= 0 and type(tensor) in PLAIN:
                    self._vouch(tensor, address, number)

    def _vouch(self, tensor: torch.Tensor, address: int, number: int) -> None:
        known = self._forms.get(form_of(tensor))
        if known is None or address in self._untrusted or self._volatile[address] != version_of(tensor):
            return
        if tensor.is_conj() or tensor.is_neg():
            return
        self._renew(address)
        known.seen[place_of(self._keys[address], tensor._version)] = number
        self._left[address] = tensor._version
        del self._volatile[address]

    def has_risen(self, tensor: torch.Tensor) -> None:
        """Know a tensor that was left by its next version, too: the rise was its operator's own."""
        address = address_of(tensor) or 0
        before = self._left.get(address)
        if before is None or tensor._version != before + 1:
            return
        self._left[address] = before + 1
        self._volatile[address] = before
        known = self._forms.get(form_of(tensor))
        if known is not None and not (tensor.is_conj() or tensor.is_neg()):
            key = self._keys[address]
            known.hand_on(place_of(key, before), place_of(key, before + 1))


def _is(seen: Any, tensor: torch.Tensor, version: int, place: int) -> bool:
    """Tell whether a tensor is the one that was seen, and still the same."""
    return seen[0]() is tensor and seen[1] == version and seen[2] == place


def _chosen(flags: Iterable[bool], *columns: Sequence[Any]) -> tuple[Any, ...]:
    """Return of each column those that have a flag."""
    flags = tuple(flags)
    return tuple(tuple(compress(column, flags)) for column in columns)


def _merged(flags: Sequence[bool], those: Sequence[int], others: Sequence[int] | None) -> Sequence[int] | None:
    """Return those that have a flag, and the others between them."""
    if others is None or len(others) == len(flags):
        return others
    one, other = iter(those), iter(others)
    return [next(one) if flag else next(other) for flag in flags]
