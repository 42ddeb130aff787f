"""Each tensor once: which tensors were seen before, and how a new one is measured and kept.

Identity is storage + view + version. A storage is known by its address in the framework, and a weak reference held until
the step ends keeps that address from being given to another storage; it keeps no data alive. Where a version cannot be
trusted (inference tensors, storages written through `.data` or numpy), the tensor is measured again every time. What an
optimizer has left at the end of a step is known in the next one, where that can be trusted: see `settled.py`.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from numscope.capture.recorder import Recorder
from numscope.capture.torch.bases import Bases
from numscope.capture.torch.forms import VERSION, Form, form_of, next_version, order_of
from numscope.capture.torch.host import left_there
from numscope.capture.torch.plain import PLAIN, data_ptr, untyped_storage, unwrap, why
from numscope.capture.torch.settled import Left, Settled, is_shared_memory
from numscope.capture.unmeasured import Unmeasured

_FORMS = 10_000  # that are remembered from step to step
_KEYS = itertools.count(-1, -1)  # no storage has one of these
_ANY = -1  # the version of a storage's tensors, whatever it is


class Tensors:
    """The tensors of the running step."""

    def __init__(self, recorder: Recorder, keeps: Callable[[int, int], bool] | None, measures: bool) -> None:
        self._recorder = recorder
        self._keeps = keeps
        self._measures = measures
        self._forms: dict[Any, Form] = {}
        self._orders: dict[Any, dict[int, tuple[int, int]]] = {}  # the same for all forms that differ in shape alone
        # The same, by the tensor's Python object: it lives as long as the tensor does, so a weak reference tells.
        self.objects: dict[int, tuple[weakref.ref[torch.Tensor], int, int, int]] = {}
        self._storages: dict[int, Any] = {}
        # What storages are known by since an operator has written to them, as their versions may not say so or be put back.
        self._keys: dict[int, int] = {}
        self._past: set[int] = set()  # what they were known by before
        self._untrusted: set[int] = set()
        self._kept: set[int] = set()
        self._bases = Bases()
        self._sampled: set[int] = set()
        # Storages that may hold something else though their version is still this one, and those that hold nothing yet.
        self._volatile: dict[int, int | None] = {}
        self.blanks: set[int] = set()
        self._settled = Settled()
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
        wrapped = type(tensor) not in PLAIN
        if wrapped:
            tensor, placement = unwrap(tensor, self._recorder.strings)
        try:
            storage = untyped_storage(tensor)
            address = storage._cdata
            version = tensor._version
            if base is not None and not wrapped and untyped_storage(base)._cdata == address:
                version = base._version
            lies = None if tensor.is_contiguous() else tensor.stride()
            form = (tensor.shape, lies, tensor.dtype, tensor.device, tensor.storage_offset(), version)
            known = self._forms.get(form) or self._learn(tensor, form)
            if known.may_put_off or self._complex:
                known = known.put_off(tensor.is_conj(), tensor.is_neg())
        except (RuntimeError, NotImplementedError) as error:
            if tensor.is_inference():
                return self._measure(tensor, placement)
            raise Unmeasured(why(tensor, error)) from None
        key = self._keys.get(address, address) if self._keys else address
        found = known.seen.get(key)
        trusted = True
        if self._untrusted or self._volatile:
            trusted = address not in self._untrusted and self._volatile.get(address) != version
        if found is None or not trusted:
            if address not in self._storages:
                self._storages[address] = storage._weak_ref()
            settled = self._settled.known.get(address) if self._settled.known else None
            left = self._settled.left.get(address) if self._settled.left else None
            if left is not None and left.form == form and left.tensor() is tensor:
                found = left.number
            elif settled is not None and trusted and settled.holds(tensor, form):
                found = self._recorder.again(settled.lasting, known.dtype, known.shape, known.device)
            elif trusted and self._recorder.shares:
                found = self._recorder.view(known.rows, key, tensor, known.dtype, known.shape, known.device, placement)
            else:
                known.rows.pop(key, None)
                found = self._recorder.tensor(tensor, known.dtype, known.shape, known.device, placement)
            known.seen[key] = found
        if trusted and not wrapped:
            self.objects[id(tensor)] = (weakref.ref(tensor), version, data_ptr(tensor), found)
        return found

    def settle(self, tensor: torch.Tensor, number: int) -> None:
        """Let the next step refer to what was measured under this number, if the tensor is the same then."""
        if type(tensor) in PLAIN and number >= 0 and not tensor.is_neg():
            self._settled.add(self._recorder, tensor, form_of(tensor), number)

    def leave(self, tensor: torch.Tensor, number: int) -> int | None:
        """Remember under which number a tensor was measured after an operator had written to it; return its storage.

        That is asked for until something else writes to its memory, or `forget_left`.
        """
        if type(tensor) in PLAIN and number >= 0:
            address = address_of(tensor)
            if address in self._volatile and address not in self._untrusted:
                self._settled.left[address] = Left(weakref.ref(tensor), form_of(tensor), number)
                return address
        return None

    def left(self, tensor: torch.Tensor) -> int:
        """Return the number that is remembered of a tensor as it is now, or -1."""
        known = self._settled.left.get(address_of(tensor) or 0) if self._settled.left else None
        return known.number if known and known.tensor() is tensor and known.form == form_of(tensor) else -1

    def has_risen(self, address: int, tensor: torch.Tensor) -> None:
        """Remember a tensor that was left with the next version, if it has that: the rise was its operator's own."""
        known = self._settled.left.get(address)
        if known is not None and known.form[VERSION] != tensor._version and known.tensor() is tensor:
            form = form_of(tensor)
            if form == next_version(known.form):
                self._settled.left[address] = known._replace(form=form)

    def forget_left(self) -> None:
        """Measure anew what operators have left."""
        self._settled.left.clear()

    def unsettle(self, tensor: torch.Tensor) -> None:
        """Measure what lies in this tensor's memory anew in the next step: it is written to, or may be."""
        if self._settled and (address := address_of(tensor)) is not None:
            self._settled.discard(address)

    def unsettle_all(self) -> None:
        """Measure everything anew in the next step."""
        self._settled.clear()

    def doubt_everything(self) -> None:
        """Measure everything anew: what has run may have written to any memory."""
        self._settled.clear()
        self._bases.clear()
        self.objects.clear()
        for known in self._forms.values():
            known.forget()

    @property
    def any_settled(self) -> bool:
        """Tell whether the next step could refer to anything."""
        return bool(self._settled)

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
        known = self._forms[form] = Form(text(dtype), shape, text(str(device)), may_put_off, rows)
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
            view = self._bases.view(tensor)
            if view is not None:
                self._recorder.keep_view(number, view)
                return number
            self._bases.add(number, tensor)
        with torch.no_grad():
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
        with torch.no_grad():
            flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
            size = flat.numel()
            if size > head + tail:
                flat = torch.cat([flat[:head], flat[head : size - tail : stride], flat[size - tail :]])
            copy = flat.clone() if data_ptr(flat) == data_ptr(tensor) else flat
        data = left_there(copy) if self._recorder.stores else copy
        self._recorder.keep(number, data, copy.numel() * copy.element_size(), sampled=True)

    def distrust(self, tensor: torch.Tensor, *, storage_only: bool = False) -> None:
        """Measure this tensor's storage anew each time: something may write to it unseen.

        With `storage_only` the storage object was asked for, which is how memory is freed and given anew, not written.
        """
        try:
            storage = untyped_storage(tensor)
        except (RuntimeError, NotImplementedError):
            return
        address = self._distrust(storage)
        if not storage_only:
            self.blanks.discard(address)
        elif storage.nbytes() == 0 and tensor.numel():
            self._volatile[address] = version_of(tensor)
            self.blanks.add(address)

    def _distrust(self, storage: Any) -> int:
        address: int = storage._cdata
        if address not in self._storages:
            self._storages[address] = storage._weak_ref()
        self._untrusted.add(address)
        self._settled.discard(address)
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

    def overwritten(self, tensor: torch.Tensor) -> None:
        """A call has written to this tensor, though its version may not say so, or not yet."""
        if type(tensor) not in PLAIN:
            try:
                tensor, _ = unwrap(tensor, self._recorder.strings)
            except Unmeasured:
                return
        address = self._doubt(tensor)
        if address is not None:
            self._past.add(self._keys.get(address, address))
            self._keys[address] = next(_KEYS)
            self.blanks.discard(address)
            self.objects.clear()
            self.doubt_others(tensor)

    def written_unseen(self, tensor: torch.Tensor) -> None:
        """Something may have written to this tensor that tells no versions."""
        if address_of(tensor) in self._storages:  # otherwise nothing is known of it
            self.overwritten(tensor)

    def doubt_others(self, tensor: torch.Tensor) -> None:
        """A call may write to this tensor: what else looks at its memory and counts versions of its own can't be trusted.

        That is a `.data` which somebody holds, or a flat buffer in which parameters lie; a view counts with its base.
        """
        if tensor._base is None and tensor.grad_fn is None and is_shared_memory(tensor):
            self.distrust(tensor)

    def _doubt(self, tensor: torch.Tensor) -> int | None:
        """Measure a tensor each time while its version stays; return what its storage is known by."""
        try:
            storage = untyped_storage(tensor)
            self._settled.discard(storage._cdata)
            version = tensor._version
        except (RuntimeError, NotImplementedError):
            return None
        address: int = storage._cdata
        if address not in self._storages:
            self._storages[address] = storage._weak_ref()
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

    def sweep(self) -> None:
        """Forget what is gone, so that a long step needs no more memory than what lives in it.

        A storage that is gone is forgotten together with all that was seen in it: its address may then be another's.
        """
        self.objects = {key: known for key, known in self.objects.items() if known[0]() is not None}
        expired = torch.UntypedStorage._expired
        gone = [address for address, reference in self._storages.items() if expired(reference)]
        for address in gone:
            torch.UntypedStorage._free_weak_ref(self._storages.pop(address))
        dead = set(gone)
        past, self._past = self._past, set()
        past |= dead | {self._keys.pop(address) for address in dead & self._keys.keys()}
        self._untrusted -= dead
        self.blanks -= dead
        self._settled.forget_those(dead)
        for address in dead & self._volatile.keys():
            del self._volatile[address]
        for form in self._forms.values():
            form.forget_those(past)

    def forget(self) -> None:
        """Forget all: a new step begins."""
        if len(self._forms) > _FORMS:
            self._forms.clear()
            self._orders.clear()
        for known in self._forms.values():
            known.forget()
        self.objects.clear()
        self._keys.clear()
        self._past.clear()
        self._untrusted.clear()
        self.blanks.clear()
        self._volatile.clear()
        self._kept.clear()
        self._bases.clear()
        self._sampled.clear()
        lasting = self._settled.new_step()
        storages, self._storages = self._storages, {}
        for address, reference in storages.items():
            if address in lasting:
                self._storages[address] = reference
            else:
                torch.UntypedStorage._free_weak_ref(reference)

    def _measure(self, tensor: torch.Tensor, placement: int) -> int:
        if tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
            raise Unmeasured(why(tensor, None))
        text = self._recorder.strings.id
        dtype = text(str(tensor.dtype).removeprefix("torch."))
        shape = self._recorder.shape(tensor.shape)
        return self._recorder.tensor(tensor, dtype, shape, text(str(tensor.device)), placement)


def address_of(tensor: torch.Tensor) -> int | None:
    """Return what a tensor's storage is known by, or None where it has none."""
    try:
        return int(untyped_storage(tensor)._cdata)
    except (RuntimeError, NotImplementedError):
        return None


def version_of(tensor: torch.Tensor) -> int | None:
    """Return a tensor's version, or None where torch keeps none."""
    try:
        return tensor._version
    except RuntimeError:
        return None
