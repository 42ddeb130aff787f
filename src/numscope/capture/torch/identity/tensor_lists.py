"""Many tensors at once, as an optimizer has them.

An operator of a fused optimizer has hundreds of tensors, in every step the same ones. What `tensors.py` does for one tensor is
done here for a list in one loop, and what torch has told of a tensor is not asked again while that can't have changed.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from operator import attrgetter

import torch

from numscope.capture.recorder import New
from numscope.capture.torch.identity.carried_over import Told, holds
from numscope.capture.torch.identity.layouts import VERSION, form_of, place_of
from numscope.capture.torch.identity.storages import UNSEEN, address_of, addresses_of, version_of
from numscope.capture.torch.identity.subclasses import PLAIN, data_ptr, untyped_storage
from numscope.capture.torch.identity.tensors import Tensors
from numscope.capture.unmeasured import Unmeasured

Asked = dict[int, Told]  # by the tensor's id
_FAULTS = (RuntimeError, NotImplementedError, Unmeasured)
_ref = weakref.ref
_version = attrgetter("_version")


class Lists(Tensors):
    """The tensors of the running step, one at a time or many.

    `asked` holds what torch has told already, since only torch's own code and ours runs: where a tensor's data lie, and its
    form, change by the user's code alone.
    """

    __slots__ = ()

    def numbers(self, tensors: Sequence[torch.Tensor], asked: Asked | None = None) -> list[int]:
        """Return the numbers of many tensors, as `number` does for one, up to one that must be looked up by itself."""
        found: list[int] = []
        recorder = self._recorder
        if not recorder.takes_many:
            return found
        new: list[New] = []
        if asked is None:
            asked = {}
        objects, keys, settled = self.objects, self._keys, self.settled.known
        untrusted, volatile = self._untrusted, self._volatile
        try:
            for tensor, key, version, place in zip(
                tensors, map(id, tensors), map(_version, tensors), map(data_ptr, tensors)
            ):
                if type(tensor) not in PLAIN:
                    break
                reference, was, address, number, _ = objects.get(key, UNSEEN)
                if reference() is tensor and was == version and address == place:
                    found.append(number)
                    continue
                told = asked.get(key)
                if told is None or told[0]() is not tensor or told[1] != place:
                    told = asked[key] = self._ask(tensor, place)
                reference, _, address, form, known = told
                at = keys.get(address, address) + (version << VERSION)
                trusted = address not in untrusted and volatile.get(address) != version
                number = known.seen.get(at) if trusted else None
                if number is None:
                    number = known.seen[at] = next(recorder.tensor_numbers)
                    lasting = None
                    if not trusted:
                        known.rows.pop(at, None)
                        at = -1
                    elif (one := settled.get(address)) is not None and (
                        (one[0] is told and one[1] == version) or holds(one, tensor, form, version)
                    ):
                        lasting = one[2]
                    new.append((number, tensor, known, at, lasting, place))
                if trusted:
                    objects[key] = (reference, version, place, number, None)
                found.append(number)
        except _FAULTS:
            pass  # of this one: looked up by itself, it is said what is wrong with it
        if new:
            recorder.many(new)
        return found

    def state(self, tensor: torch.Tensor) -> int:
        """Return the number of a module's own tensor: most are as an optimizer has left them in the step before."""
        settled = self.settled.of(tensor)
        if settled is not None:
            (reference, place, address, _, form), version, lasting = settled
            if address not in self._untrusted and self._volatile.get(address) != version:
                at = self._keys.get(address, address) + (version << VERSION)
                number = form.seen.get(at)
                if number is None:
                    number = self._recorder.again(lasting, form.dtype, form.shape, form.device)
                    form.seen[at] = number
                self.objects[id(tensor)] = (reference, version, place, number, (form, at))
                return number
        return self.look_up(tensor)

    def _ask(self, tensor: torch.Tensor, place: int) -> Told:
        """Ask torch about a tensor whose data are at a place, and hold its storage's address."""
        if self.settled.known and (settled := self.settled.of(tensor)) is not None:
            return settled[0]
        storage = untyped_storage(tensor)
        address = storage._cdata
        lies = None if tensor.is_contiguous() else tensor.stride()
        form = (tensor.shape, lies, tensor.dtype, tensor.device, tensor.storage_offset())  # as `form_of` does
        known = self._forms.get(form) or self._learn(tensor, form)
        if known.may_put_off or self._complex:
            known = known.put_off(known.is_complex and tensor.is_conj(), tensor.is_neg())
        if address not in self._storages:
            self._storages[address] = storage._weak_ref()
        return _ref(tensor), place, address, form, known

    def _told(self, tensor: torch.Tensor, asked: Asked) -> Told | None:
        """Return what torch tells of a tensor, or None where it can't."""
        try:
            if type(tensor) not in PLAIN:
                return None
            place = data_ptr(tensor)
            told = asked.get(id(tensor))
            if told is None or told[0]() is not tensor or told[1] != place:
                told = asked[id(tensor)] = self._ask(tensor, place)
            return told
        except _FAULTS:
            return None

    def settle(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int], asked: Asked) -> None:
        """Let the next step refer to what was measured under these numbers, where the tensors are the same then."""
        those: list[tuple[torch.Tensor, Told, int]] = []
        for tensor, number in zip(tensors, numbers):
            if number >= 0 and (told := self._told(tensor, asked)) is not None:
                _, _, _, form, known = told
                if not known.may_put_off or self._forms.get(form) is known:  # torch has put nothing off
                    those.append((tensor, told, number))
        if those:
            self.settled.add(self._recorder, *zip(*those))

    def left(self, tensors: Sequence[torch.Tensor], asked: Asked) -> list[int]:
        """Return under which numbers tensors were measured after the optimizer's operators that wrote to them last, or -1."""
        found: list[int] = []
        keys, left = self._keys, self._left
        for tensor in tensors:
            told = self._told(tensor, asked)
            version = version_of(tensor)
            if told is None or version is None or left.get(told[2]) != version:
                found.append(-1)
            else:
                found.append(told[4].seen.get(place_of(keys[told[2]], version), -1))
        return found

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
