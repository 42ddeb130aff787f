"""Each tensor once: tensors are recognised, and new ones measured and kept.

A tensor is recognised by its storage, its layout and its version. Where the version cannot be trusted (inference tensors,
storages written through `.data` or numpy), the tensor is measured again at every look. A parameter that an optimizer wrote
at the end of a step is recognised in the next one, where that is safe: see `carried_over.py`.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence

import torch

from numscope.capture.recording.columns import Lasting
from numscope.capture.recording.recorder import NewTensor, Recorder
from numscope.capture.recording.rows import MeasuredAt
from numscope.capture.torch.device_to_host import fetched_later
from numscope.capture.torch.identity.kept_views import KeptBases
from numscope.capture.torch.identity.known_tensors import KnownTensor
from numscope.capture.torch.identity.layouts import (
    ElementOrder,
    Layout,
    LayoutKey,
    content_key,
    element_order,
    layout_key,
)
from numscope.capture.torch.identity.storages import Storages, address_of, addresses_of, free, is_gone, version_of
from numscope.capture.torch.identity.subclasses import PLAIN, data_ptr, untyped_storage, unwrap, why
from numscope.fingerprint.columns import Unmeasured

KnownById = dict[int, KnownTensor]
_ref = weakref.ref
_UNTRUSTED = -1  # in place of a content key
_LAYOUTS = 10_000  # remembered from step to step
_UNKNOWABLE = (RuntimeError, NotImplementedError, Unmeasured)


class Tensors(Storages):
    """The tensors of the running step, looked up one at a time, or many at once as an optimizer passes them."""

    __slots__ = (
        "_kept",
        "_kept_bases",
        "_layouts",
        "_recorder",
        "_rows_by_order",
        "_sampled",
        "_saw_complex",
        "compiled_layouts",
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder.strings)
        self._recorder = recorder
        self._layouts: dict[LayoutKey, Layout] = {}
        self.compiled_layouts: object = None  # the table of the compiled functions
        # The rows that layouts which differ in shape alone share.
        self._rows_by_order: dict[tuple[ElementOrder, torch.dtype, torch.device, int], dict[int, MeasuredAt]] = {}
        self._kept: set[int] = set()
        self._kept_bases = KeptBases()
        self._sampled: set[int] = set()
        self._saw_complex = False

    # Looking up ---------------------------------------------------------------------------------------------------

    def number(self, tensor: torch.Tensor) -> int:
        """Return the tensor's number in this step, measuring a new tensor; raise Unmeasured where it cannot be measured."""
        known = self.cached.get(id(tensor))
        return known.number if known is not None and known.is_current(tensor) else self.look_up(tensor)

    def look_up(self, tensor: torch.Tensor, base: torch.Tensor | None = None) -> int:
        """Return the number of a tensor that has no cached fingerprint.

        `base`: the tensor of which this is a new view; the view gets its version only when a dispatch mode has returned.
        """
        placement = -1
        if wrapped := type(tensor) not in PLAIN:
            wrapper_version = version_of(tensor)
            tensor, placement = unwrap(tensor, self._recorder.strings)
            self._note_wrapper(tensor, wrapper_version)
        try:
            known = self._ask(tensor)
            version = tensor._version
            if base is not None and not wrapped and base._version != version:
                version = base._version if untyped_storage(base)._cdata == known.storage else version
        except (RuntimeError, NotImplementedError) as error:
            if tensor.is_inference():
                return self._measure_again(tensor, placement)
            raise Unmeasured(why(tensor, error)) from None
        layout, recorder = known.layout, self._recorder
        content = content_key(self._generations.get(known.storage, known.storage), version)
        trusted = self._is_trusted(known.storage, version)
        number = layout.numbers.get(content) if trusted else None
        if number is None:
            fingerprint = self._carried_fingerprint(tensor, known, version) if trusted else None
            if not trusted:
                layout.rows.pop(content, None)
            if fingerprint is not None:
                number = recorder.again(fingerprint, layout.dtype, layout.shape, layout.device)
            else:
                number = self._measure(tensor, layout, content if trusted else _UNTRUSTED, known.data_ptr, placement)
            layout.numbers[content] = number
        if trusted and not wrapped:
            self._cache(tensor, known, version, content, number)
        return number

    def numbers(self, tensors: Sequence[torch.Tensor], asked: KnownById | None = None) -> list[int]:
        """Return the numbers of the first tensors, as `number` does for one, up to one that must be looked up alone.

        `asked`: answers of torch that still hold, as only torch's own code and ours ran since: a tensor's address and
        layout are changed by the user's code alone.
        """
        numbers: list[int] = []
        recorder = self._recorder
        if not recorder.takes_many:
            return numbers
        new: list[NewTensor] = []
        asked = {} if asked is None else asked
        cached, generations = self.cached, self._generations
        try:
            for tensor in tensors:
                if type(tensor) not in PLAIN:
                    break
                known = cached.get(id(tensor))
                if known is not None and known.is_current(tensor):
                    numbers.append(known.number)
                    continue
                version = tensor._version
                known = asked.get(id(tensor))
                if known is None or not known.is_at(tensor):
                    known = asked[id(tensor)] = self._ask(tensor)
                layout, storage = known.layout, known.storage
                content = content_key(generations.get(storage, storage), version)
                trusted = self._is_trusted(storage, version)
                number = layout.numbers.get(content) if trusted else None
                if number is None:
                    number = layout.numbers[content] = next(recorder.tensor_numbers)
                    fingerprint = self._carried_fingerprint(tensor, known, version) if trusted else None
                    if not trusted:
                        layout.rows.pop(content, None)
                        content = _UNTRUSTED
                    new.append(NewTensor(number, tensor, layout, content, fingerprint, known.data_ptr))
                if trusted:
                    self._cache(tensor, known, version, content, number)
                numbers.append(number)
        except _UNKNOWABLE:
            pass  # looked up alone, this tensor raises its reason
        if new:
            recorder.many(new)
        return numbers

    def _cache(self, tensor: torch.Tensor, known: KnownTensor, version: int, content: int, number: int) -> None:
        known.version, known.content, known.number = version, content, number
        self.cached[id(tensor)] = known

    def _carried_fingerprint(self, tensor: torch.Tensor, known: KnownTensor, version: int) -> Lasting | None:
        """Return the fingerprint that an earlier step measured of a tensor, where it still holds."""
        carried = self.carried_over.by_storage.get(known.storage)
        return carried.fingerprint if carried is not None and carried.holds(tensor, known.layout, version) else None

    def _measure(self, tensor: torch.Tensor, layout: Layout, content: int, address: int, placement: int) -> int:
        """Number a tensor, and measure it unless its elements were measured under another layout."""
        recorder = self._recorder
        if recorder.shares:
            return recorder.view(layout, content, tensor, address, placement)
        return recorder.tensor(tensor, layout.dtype, layout.shape, layout.device, placement)

    def _measure_again(self, tensor: torch.Tensor, placement: int) -> int:
        """Number and measure a tensor, seen or not."""
        if tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
            raise Unmeasured(why(tensor, None))
        text = self._recorder.strings.id
        dtype = text(str(tensor.dtype).removeprefix("torch."))
        shape = self._recorder.shape(tensor.shape)
        return self._recorder.tensor(tensor, dtype, shape, text(str(tensor.device)), placement)

    def remeasure_everything(self) -> None:
        """Measure everything anew: code has run that may have written to any memory."""
        self.drop_all_carried_over()
        self._kept_bases.clear()
        self.cached.clear()
        for layout in self._layouts.values():
            layout.forget()

    # Asking torch about a tensor ---------------------------------------------------------------------------------

    def _ask(self, tensor: torch.Tensor) -> KnownTensor:
        """Ask torch about a tensor, unless it was carried over, and hold its storage's address."""
        if self.carried_over.by_storage and (carried := self.carried_over.known(tensor)) is not None:
            return carried
        storage = untyped_storage(tensor)
        layout = self.layout(tensor)
        if layout.may_be_lazy or self._saw_complex:
            layout = layout.lazy(layout.is_complex and tensor.is_conj(), tensor.is_neg())
        address: int = storage._cdata
        data = data_ptr(tensor)
        if not data and torch._is_functional_tensor(tensor):
            raise Unmeasured("FunctionalTensor has no data")
        self._hold_address(address, storage)
        return KnownTensor(_ref(tensor), data, address, layout)

    def _known(self, tensor: torch.Tensor, asked: KnownById) -> KnownTensor | None:
        """Return the entry of a tensor, or None where torch cannot tell."""
        try:
            if type(tensor) not in PLAIN:
                return None
            known = asked.get(id(tensor))
            if known is None or not known.is_at(tensor):
                known = asked[id(tensor)] = self._ask(tensor)
            return known
        except _UNKNOWABLE:
            return None

    def layout(self, tensor: torch.Tensor) -> Layout:
        """Return the layout of a plain tensor, without its conjugate and negative bits."""
        key = layout_key(tensor)
        return self._layouts.get(key) or self._learn_layout(tensor, key)

    def _learn_layout(self, tensor: torch.Tensor, key: LayoutKey) -> Layout:
        """Return a new layout; raise Unmeasured where no tensor of it can be measured."""
        _, strides, dtype, device, offset = key
        if tensor.layout is not torch.strided or device.type == "meta" or tensor.is_quantized:
            raise Unmeasured(why(tensor, None))
        text = self._recorder.strings.id
        # The negative bit is set in the imaginary part of a conjugate: every second element of a complex tensor, or, on the
        # way there, all parts of a complex tensor, which was seen then.
        is_complex = tensor.is_complex()
        self._saw_complex = self._saw_complex or is_complex
        layout = self._layouts[key] = Layout(
            text(str(dtype).removeprefix("torch.")),
            self._recorder.shape(tensor.shape),
            text(str(device)),
            self._rows_by_order.setdefault((element_order(tensor), dtype, device, offset), {}),
            is_complex=is_complex,
            may_be_lazy=strides is not None or tensor.numel() < 2,
        )
        return layout

    # An optimizer's step ------------------------------------------------------------------------------------------

    def numbers_after_optimizer(self, tensors: Sequence[torch.Tensor], asked: KnownById) -> list[int]:
        """Return the numbers under which tensors were measured after an optimizer's operator wrote to them last, or -1."""
        numbers: list[int] = []
        for tensor in tensors:
            known = self._known(tensor, asked)
            version = version_of(tensor)
            if known is None or version is None or self._optimizer_versions.get(known.storage) != version:
                numbers.append(-1)
            else:
                content = content_key(self._generations[known.storage], version)
                numbers.append(known.layout.numbers.get(content, -1))
        return numbers

    def carry_over(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int], asked: KnownById) -> None:
        """Let the next step refer to the fingerprints of these numbers, where nothing writes to the tensors until then."""
        chosen = [
            (tensor, known, number)
            for tensor, number in zip(tensors, numbers)
            if number >= 0 and (known := self._known(tensor, asked)) is not None and not known.layout.is_lazy
        ]
        if chosen:
            self.carried_over.add(self._recorder, *zip(*chosen))

    def trust_measured(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> None:
        """Trust the versions of tensors, just measured under these numbers, until the next write."""
        if not self._stale_versions:
            return
        for tensor, address, number in zip(tensors, addresses_of(tensors), numbers):
            if address not in self._stale_versions or number < 0 or type(tensor) not in PLAIN:
                continue
            if address in self._unversioned or self._stale_versions[address] != version_of(tensor):
                continue
            layout = self._plain_layout(tensor)
            if layout is None:
                continue
            self._begin_generation(address)
            layout.numbers[content_key(self._generations[address], tensor._version)] = number
            self._optimizer_versions[address] = tensor._version
            del self._stale_versions[address]

    def version_rose(self, tensor: torch.Tensor) -> None:
        """Enter a tensor that an optimizer's operator wrote under its next version, too: the operator itself raised it."""
        address = address_of(tensor) or 0
        before = self._optimizer_versions.get(address)
        if before is None or tensor._version != before + 1:
            return
        self._optimizer_versions[address] = before + 1
        self._stale_versions[address] = before
        layout = self._plain_layout(tensor)
        if layout is not None:
            generation = self._generations[address]
            layout.copy_content(content_key(generation, before), content_key(generation, before + 1))

    def _plain_layout(self, tensor: torch.Tensor) -> Layout | None:
        """Return the layout of a tensor, where it was seen before and the conjugate and negative bits are not set."""
        return None if tensor.is_conj() or tensor.is_neg() else self._layouts.get(layout_key(tensor))

    # Keeping data -------------------------------------------------------------------------------------------------

    def keep(self, number: int, tensor: torch.Tensor) -> int:
        """Keep a copy of the tensor's data, once; return the tensor's number, a new one if its row is written already."""
        if number in self._kept:
            return number
        if self._recorder.is_handed_over(number):
            number = self._measure_again(tensor, -1)
        if not self._keep(number, tensor):
            return self.keep(number, tensor)  # a large copy takes time, in which another thread has handed the row over
        self._kept.add(number)
        return number

    def _keep(self, number: int, tensor: torch.Tensor) -> bool:
        is_base, generation = False, None
        if type(tensor) not in PLAIN:
            tensor, _ = unwrap(tensor, self._recorder.strings)
        elif self._recorder.stores:
            address = address_of(tensor)
            if address is None or not (address in self._unversioned or address in self._stale_versions):
                generation = None if address is None else self._generations.get(address, address)
                view = self._kept_bases.view(tensor, generation)
                if view is not None:
                    return self._recorder.keep_view(number, view)
                is_base = True
        # Resolved first, as its hash is: torch's copy of a negative complex view has other signs of zero.
        copy = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        data = fetched_later(copy) if self._recorder.stores else copy
        done = self._recorder.keep(number, data, copy.numel() * copy.element_size())
        if done and is_base:
            self._kept_bases.add(number, tensor, generation)
        return done

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
        data = fetched_later(copy) if self._recorder.stores else copy
        self._recorder.keep(number, data, copy.numel() * copy.element_size(), sampled=True)

    # Forgetting ---------------------------------------------------------------------------------------------------

    def forget_dead(self) -> None:
        """Forget tensors and storages that are gone, so that a long step needs memory only for those alive.

        A storage that is gone is forgotten with every tensor that was seen in it: another storage may get its address.
        """
        self.cached = {key: known for key, known in self.cached.items() if known.tensor() is not None}
        dead = {address for address, reference in self._weak_refs.items() if is_gone(reference)}
        deque(map(free, map(self._weak_refs.pop, dead)), 0)  # a loop in C
        self._large, self._large_bytes = [address for address in self._large if address in self._weak_refs], 0
        past, self._past_generations = self._past_generations, set()
        gone = self._generations.keys() - self._weak_refs.keys()  # some were forgotten before
        past |= dead | {self._generations.pop(address) for address in gone}
        self._forget_facts(dead)
        for layout in self._layouts.values():
            layout.forget_storages(past)

    def new_step(self) -> None:
        """Forget everything but the fingerprints carried over: a new step begins."""
        if len(self._layouts) > _LAYOUTS:
            self._layouts.clear()
            self.compiled_layouts = None
            self._rows_by_order.clear()
            self.carried_over.clear()  # it refers to these layouts
        for layout in self._layouts.values():
            layout.forget()
        self.cached.clear()
        self._generations.clear()
        self._past_generations.clear()
        self._optimizer_versions.clear()
        self._unversioned.clear()
        self._wrapper_versions.clear()
        self.uninitialized.clear()
        self._stale_versions.clear()
        self._kept.clear()
        self._kept_bases.clear()
        self._sampled.clear()
        kept = self._weak_refs.keys() & self.carried_over.new_step()
        dropped, self._weak_refs = self._weak_refs, {address: self._weak_refs[address] for address in kept}
        deque(map(free, [dropped[address] for address in dropped.keys() - kept]), 0)
        self._large, self._large_bytes = [address for address in self._large if address in kept], 0
