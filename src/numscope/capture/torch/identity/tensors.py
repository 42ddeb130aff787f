"""Each tensor once: which tensors were seen before, and how a new one is measured and kept.

Identity is storage + view + version. A storage is known by its address in the framework, and a weak reference held until
the step ends keeps that address from being given to another storage; it keeps no data alive. Where a version cannot be
trusted (inference tensors, storages written through `.data` or numpy), the tensor is measured again every time. What an
optimizer has left at the end of a step is known in the next one, where that can be trusted: see `settled.py`. Many
tensors at once are looked up in `lists.py`.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from itertools import repeat
from typing import Any

import torch

from numscope.capture.arguments import LONGEST
from numscope.capture.recorder import Recorder
from numscope.capture.torch.device_to_host import left_there
from numscope.capture.torch.identity.carried_over import holds
from numscope.capture.torch.identity.kept_views import Bases
from numscope.capture.torch.identity.layouts import VERSION, Form, form_of, order_of
from numscope.capture.torch.identity.storages import Known, Storages, address_of, version_of
from numscope.capture.torch.identity.subclasses import PLAIN, data_ptr, untyped_storage, unwrap, why
from numscope.capture.unmeasured import Unmeasured

_ref = weakref.ref
_FORMS = 10_000  # that are remembered from step to step


class Tensors(Storages):
    """The tensors of the running step."""

    __slots__ = (
        "_bases", "_complex", "_forms", "_keeps", "_kept", "_measures", "_orders", "_recorder", "_sampled", "compiled_forms",
        "follows_views",
    )  # fmt: skip

    def __init__(self, recorder: Recorder, keeps: Callable[[int, int], bool] | None, measures: bool) -> None:
        super().__init__(recorder.strings)
        self._recorder = recorder
        self._keeps = keeps
        self._measures = measures
        self._forms: dict[Any, Form] = {}
        self.compiled_forms: Any = None  # the same for the compiled functions
        self._orders: dict[Any, dict[int, tuple[int, int]]] = {}  # the same for all forms that differ in shape alone
        self.follows_views = False  # … where operators tell of what they are views
        self._kept: set[int] = set()
        self._bases = Bases()
        self._sampled: set[int] = set()
        self._complex = False  # a complex tensor was ever seen

    def number(self, tensor: torch.Tensor) -> int:
        """Return the tensor's number in this step, measuring it if it was not seen; raise Unmeasured if it can't be."""
        known = self.objects.get(id(tensor))
        if (
            known is not None
            and known[0]() is tensor
            and known[1] == tensor._version
            and known[2] == data_ptr(tensor)  # not given other data by `.data = …`
        ):
            return known[3]
        return self.look_up(tensor)

    def look_up(self, tensor: torch.Tensor, base: torch.Tensor | None = None) -> int:
        """Return the number of a tensor whose Python object does not tell it.

        `base`: what the tensor is a new view of; it gets that one's version only when a dispatch mode has returned.
        """
        placement = -1
        if wrapped := type(tensor) not in PLAIN:
            version = version_of(tensor)
            tensor, placement = unwrap(tensor, self._recorder.strings)
            self._written_through(tensor, version)
        try:
            storage = untyped_storage(tensor)
            address = storage._cdata
            version = tensor._version
            if base is not None and not wrapped and (latest := base._version) != version:
                version = latest if untyped_storage(base)._cdata == address else version
            form = (
                tensor.shape, None if tensor.is_contiguous() else tensor.stride(), tensor.dtype, tensor.device,
                tensor.storage_offset(),
            )  # fmt: skip
            known = self._forms.get(form) or self._learn(tensor, form)
            if known.may_put_off or self._complex:
                known = known.put_off(known.is_complex and tensor.is_conj(), tensor.is_neg())
            data = data_ptr(tensor)
        except (RuntimeError, NotImplementedError) as error:
            if tensor.is_inference():
                return self._measure(tensor, placement)
            raise Unmeasured(why(tensor, error)) from None
        recorder = self._recorder
        if address not in self._storages:  # as of most: nothing of it was seen, and nothing is to be doubted
            self._storages[address] = storage._weak_ref()
            place = address + (version << VERSION) if version else address
            if recorder.shares:
                found = recorder.first(known, place, tensor, data, placement)
            else:
                found = recorder.tensor(tensor, known.dtype, known.shape, known.device, placement)
            known.seen[place] = found
        else:
            place = self._keys.get(address, address) + (version << VERSION)
            found = known.seen.get(place, -1)
            trusted = address not in self._untrusted and self._volatile.get(address) != version
            if found < 0 or not trusted:
                settled = self.settled.known
                if address in settled and trusted and holds(one := settled[address], tensor, form, version):
                    found = recorder.again(one[2], known.dtype, known.shape, known.device)
                else:
                    if not trusted and known.rows:
                        known.rows.pop(place, None)
                    if recorder.shares:
                        found = recorder.view(known, place if trusted else -1, tensor, data, placement)
                    else:
                        found = recorder.tensor(tensor, known.dtype, known.shape, known.device, placement)
                known.seen[place] = found
            if not trusted:
                return found
        if not wrapped:
            lies = (known, place) if self.follows_views else None
            self.objects[id(tensor)] = (_ref(tensor), version, data, found, lies)
        return found

    def look_up_view(self, tensor: torch.Tensor, base: torch.Tensor, known: Known | None, how: int) -> int:
        """Return the number of a new view of a tensor; `known`: what `objects` has of that; `how`: what has made it of that.

        All views that are made in the same way of tensors of one form have one form: torch is asked for the first of them.
        That a view lies where it should is asked of each.
        """
        known = known or self.objects.get(id(base))
        if known is None or known[4] is None:  # it can't be trusted, or is one of a list
            return self.look_up(tensor, base)
        _, version, address, _, lies = known
        form: Form
        form, place = lies
        try:
            view, distance = form.views[how]
        except KeyError:
            return self._learn_view(tensor, base, form, place, address, how)
        at = data_ptr(tensor)
        if at != address + distance:
            return self.look_up(tensor, base)
        found = view.seen.get(place)
        if found is None:
            recorder = self._recorder
            if recorder.shares:
                found = recorder.view(view, place, tensor, at, -1)
            else:
                found = recorder.tensor(tensor, view.dtype, view.shape, view.device)
            view.seen[place] = found
        self.objects[id(tensor)] = (_ref(tensor), version, at, found, (view, place))
        return found

    def _learn_view(
        self, tensor: torch.Tensor, base: torch.Tensor, form: Form, place: int, address: int, how: int
    ) -> int:
        found = self.look_up(tensor, base)
        known = self.objects.get(id(tensor))
        # What has no data lies nowhere; of a list of more than that many sizes, what tells it from others is cut off.
        if known is not None and known[4] is not None and known[4][1] == place and address and tensor.dim() <= LONGEST:
            form.views[how] = known[4][0], known[2] - address
        return found

    def doubt_everything(self) -> None:
        """Measure everything anew: what has run may have written to any memory."""
        self.unsettle_all()
        self._bases.clear()
        self.objects.clear()
        for known in self._forms.values():
            known.forget()

    @property
    def any_settled(self) -> bool:
        """Tell whether the next step could refer to anything."""
        return bool(self.settled)

    def form(self, tensor: torch.Tensor) -> Form:
        """Return the form of a plain tensor of which torch has put nothing off."""
        form = form_of(tensor)
        return self._forms.get(form) or self._learn(tensor, form)

    def _learn(self, tensor: torch.Tensor, form: Any) -> Form:
        """Return a new form; raise Unmeasured where nothing of the kind can be measured."""
        device = tensor.device
        if tensor.layout is not torch.strided or device.type == "meta" or tensor.is_quantized:
            raise Unmeasured(why(tensor, None))
        text = self._recorder.strings.id
        dtype = str(tensor.dtype).removeprefix("torch.")
        rows = self._orders.setdefault((order_of(tensor), *form[2:]), {})
        shape = self._recorder.shape(tensor.shape)
        # A negation is put off in the imaginary part of a conjugate: elements of a complex tensor with others between them,
        # or, on the way there, all parts of a complex tensor, which was seen then.
        self._complex = self._complex or tensor.is_complex()
        may_put_off = form[1] is not None or tensor.numel() < 2
        known = self._forms[form] = Form(text(dtype), shape, text(str(device)), may_put_off, rows, tensor.is_complex())
        return known

    def keep(self, number: int, tensor: torch.Tensor) -> int:
        """Keep a copy of the tensor's data, once; return the tensor's number, a new one if its row is written already."""
        if number in self._kept:
            return number
        if self._recorder.is_handed_over(number):
            number = self._measure(tensor, -1)
        self._kept.add(number)
        if type(tensor) not in PLAIN:
            tensor, _ = unwrap(tensor, self._recorder.strings)
        elif self._recorder.stores and self._is_trusted(tensor):
            address = address_of(tensor)
            key = self._keys.get(address, address)  # type: ignore[arg-type]
            view = self._bases.view(tensor, key)
            if view is not None:
                self._recorder.keep_view(number, view)
                return number
            self._bases.add(number, tensor, key)
        copy = tensor.detach().clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
        data = left_there(copy) if self._recorder.stores else copy
        self._recorder.keep(number, data, copy.numel() * copy.element_size())
        return number

    def _is_trusted(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor's memory is what it was whenever it had this version."""
        address = address_of(tensor)
        return address not in self._untrusted and address not in self._volatile

    def keep_sample(self, number: int, tensor: torch.Tensor, sample: tuple[int, int, int]) -> None:
        """Keep a sample of the tensor's elements in row-major order: the head, every k-th of the middle, the tail."""
        if number in self._kept or number in self._sampled or self._recorder.is_handed_over(number):
            return
        self._sampled.add(number)
        if type(tensor) not in PLAIN:
            tensor, _ = unwrap(tensor, self._recorder.strings)
        head, stride, tail = sample
        flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
        size = flat.numel()
        if size > head + tail:
            flat = torch.cat([flat[:head], flat[head : size - tail : stride], flat[size - tail :]])
        copy = flat.clone() if data_ptr(flat) == data_ptr(tensor) else flat
        data = left_there(copy) if self._recorder.stores else copy
        self._recorder.keep(number, data, copy.numel() * copy.element_size(), sampled=True)

    def sweep(self) -> None:
        """Forget what is gone, so that a long step needs no more memory than what lives in it.

        A storage that is gone is forgotten together with all that was seen in it: its address may then be another's.
        """
        self.objects = {key: known for key, known in self.objects.items() if known[0]() is not None}
        expired = torch.UntypedStorage._expired
        gone = [address for address, reference in self._storages.items() if expired(reference)]
        deque(
            map(torch.UntypedStorage._free_weak_ref, map(self._storages.pop, gone)), 0
        )  # which only calls it, for each
        dead = set(gone)
        past, self._past = self._past, set()
        past |= dead | {self._keys.pop(address) for address in dead & self._keys.keys()}
        self._untrusted -= dead
        self.blanks -= dead
        self.settled.discard_all(dead)
        about: tuple[dict[int, Any], ...] = (self._volatile, self._left, self._wrapped)
        for known in filter(None, about):
            deque(map(known.pop, gone, repeat(None)), 0)
        for form in self._forms.values():
            form.forget_those(past)

    def forget(self) -> None:
        """Forget all: a new step begins."""
        if len(self._forms) > _FORMS:
            self._forms.clear()
            self.compiled_forms = None
            self._orders.clear()
            self.settled.clear()  # which has forms of these
        for known in self._forms.values():
            known.forget()
        self.objects.clear()
        self._keys.clear()
        self._past.clear()
        self._left.clear()
        self._untrusted.clear()
        self._wrapped.clear()
        self.blanks.clear()
        self._volatile.clear()
        self._kept.clear()
        self._bases.clear()
        self._sampled.clear()
        lasting = self.settled.new_step()
        storages = self._storages
        kept = storages.keys() & lasting
        self._storages = dict(zip(kept, map(storages.pop, kept)))
        deque(map(torch.UntypedStorage._free_weak_ref, storages.values()), 0)

    def _measure(self, tensor: torch.Tensor, placement: int) -> int:
        if tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
            raise Unmeasured(why(tensor, None))
        text = self._recorder.strings.id
        dtype = text(str(tensor.dtype).removeprefix("torch."))
        shape = self._recorder.shape(tensor.shape)
        return self._recorder.tensor(tensor, dtype, shape, text(str(tensor.device)), placement)
