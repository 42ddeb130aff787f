"""Feeds the calls of a guarded job to the tracker of non-finite values, and answers what the tracker asks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch

from numscope.capture.recording.interned import Strings
from numscope.capture.scope import Call, Scope
from numscope.capture.sites import Sites
from numscope.capture.torch.guard.calls import HeldTensor, LiveCall, OpenModule, resolve, storage_of
from numscope.capture.torch.guard.device_log import Look
from numscope.core.report import Origin, Source
from numscope.core.words import OriginKind, Phase
from numscope.nonfinite.rule import Counts, State
from numscope.nonfinite.tracker import LIVE, Adapter, FoundOrigin, OwnCode, ParameterOwner, Tracker

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False, slots=True)
class LiveTensor:
    """A tensor in a slot of a call: its storage, and its counts or the look that will have them."""

    slot: str
    key: int  # of its storage
    known: Counts | None = None
    look: Look | None = None
    parameter: str = ""  # its name, if it is one
    tensor: HeldTensor = None
    version: int | None = None  # that the tensor had; None: it is as it was

    @property
    def counts(self) -> Counts:
        """How many of its elements are not finite."""
        if self.known is not None:
            return self.known
        assert self.look is not None
        return self.look.counts


LiveOrigin = FoundOrigin[LiveCall, LiveTensor]


@dataclass(frozen=True)
class _Mark:
    """Why a storage holds something non-finite; a weak reference keeps its address from being another's."""

    state: State
    reference: object | None


class Marks:
    """Why storages hold something non-finite, each for as long as it lives."""

    def __init__(self) -> None:
        self._known: dict[int, _Mark] = {}

    def set(self, tensor: Tensor | None, key: int, state: State) -> None:
        """Remember a storage's state."""
        known = self._known.get(key)
        if known is not None:
            self._known[key] = replace(known, state=state)
        elif key:
            storage = storage_of(tensor) if tensor is not None else None
            self._known[key] = _Mark(state, storage._weak_ref() if storage is not None else None)

    def adopt(self, key: int, state: State, reference: object | None) -> None:
        """Remember a storage's state by a weak reference that is now ours."""
        known = self._known.get(key)
        if known is None:
            self._known[key] = _Mark(state, reference)
            return
        if reference is not None:
            torch.UntypedStorage._free_weak_ref(reference)
        self._known[key] = replace(known, state=state)

    def get(self, key: int) -> State | None:
        """Return a storage's state, or None where nothing non-finite was seen in it."""
        known = self._known.get(key)
        return known.state if known is not None else None

    def __len__(self) -> int:
        return len(self._known)

    def drop(self, key: int) -> None:
        """Forget one storage: what it holds is finite now."""
        known = self._known.pop(key, None)
        if known is not None and known.reference is not None:
            torch.UntypedStorage._free_weak_ref(known.reference)

    def forget(self) -> None:
        """Forget storages that are gone."""
        for key, mark in list(self._known.items()):
            if mark.reference is None:
                del self._known[key]
            elif torch.UntypedStorage._expired(mark.reference):
                self.drop(key)


class LiveTracking(Adapter[LiveCall, LiveTensor]):
    """The adapter of a live job: calls come here only where something is not finite."""

    def __init__(
        self,
        strings: Strings,
        sites: Sites,
        found: Callable[[LiveOrigin], None],
        allow: Sequence[str] = (),
        modules_only: bool = False,
        give_reference: Callable[[int], object | None] = lambda key: None,
    ) -> None:
        self.tracker = Tracker(self, LIVE)
        self.marks = Marks()
        self.rank = 0
        self.arrived_through: list[str] = []  # calls through which another rank's values came in
        self.is_parameter_gradient: Callable[[int], bool] = lambda key: False  # asked of a storage
        self.modules_only = modules_only
        self._strings = strings
        self._sites = sites
        self._found = found
        self._allow = Scope(allow) if allow else None
        self._give_reference = give_reference  # to a storage whose tensor is gone

    # What the tracker asks ------------------------------------------------------------------------------------------

    def name(self, call: LiveCall, phase: str) -> str:
        """Return a call's name in a phase."""
        return self._strings[call.name(phase if phase in ("backward", "input") else "forward")]

    def key(self, tensor: LiveTensor) -> Hashable:
        """Return what stands for a tensor's memory."""
        return tensor.key

    def state(self, tensor: LiveTensor) -> State | None:
        """Return the state that a tensor, or what its storage holds, was marked with."""
        return (tensor.look.state if tensor.look is not None else None) or self.marks.get(tensor.key)

    def mark(self, tensor: LiveTensor, state: State, call: LiveCall) -> None:
        """Remember a tensor's state."""
        if tensor.look is not None:
            tensor.look.state = state
        held = resolve(tensor.tensor)
        if held is None and tensor.look is not None:
            self.marks.adopt(tensor.key, state, self._give_reference(tensor.key))
        else:
            self.marks.set(held, tensor.key, state)

    def is_parameter(self, tensor: LiveTensor) -> bool:
        """Tell whether a tensor is a parameter of a module."""
        return bool(tensor.parameter)

    def enclosing(self, call: LiveCall) -> Iterable[LiveCall]:
        """Return the calls that a call runs inside."""
        return call.enclosing()

    def outlook(self, call: LiveCall, made: Sequence[LiveTensor]) -> State:
        """Tell whether what a call made does harm already; where it may come to nothing, the calls that follow tell."""
        return "wrong" if call.flows or any(tensor.counts.nan for tensor in made) else "doubtful"

    def forward_part(self, call: LiveCall) -> LiveCall | None:
        """Return the call itself: forward and backward are parts of one."""
        return call

    def is_aside(self, call: LiveCall) -> bool:
        """Tell whether a call runs outside all modules, with no gradient flowing through it."""
        return call.aside

    def owner(
        self, call: LiveCall, tensor: LiveTensor, inputs: Sequence[LiveTensor]
    ) -> ParameterOwner[LiveCall, LiveTensor] | None:
        """Return the module whose parameter a tensor is, or the call that was given it where no such module runs."""
        if not tensor.parameter:
            return None
        path, _, own = tensor.parameter.rpartition(".")
        module = call.parent
        if not (isinstance(module, OpenModule) and module.path == path):
            return ParameterOwner(call, tensor.slot, tensor.parameter, inputs)
        of_module = [_in_module_slot(item, path) for item in inputs]
        return ParameterOwner(module.call, f"parameters.{own}", tensor.parameter, of_module)

    def own_code(self, call: LiveCall, phase: str) -> OwnCode[LiveCall]:
        """Return the module whose own code called a module; of gradients, the outermost that a wrong one came into."""
        outer = call.calling_module()
        while phase == "backward" and outer is not None and any(not item.counts.clean for item in outer.incoming):
            call, outer = outer, outer.calling_module()
        return OwnCode(outer, call)

    def is_allowed(self, call: LiveCall, name: str) -> bool:
        """Tell whether the user has said that a call's results are meant."""
        if self._allow is None:
            return False
        parent = call.parent
        path, kind = (self._strings[parent.module], self._strings[parent.module_class]) if parent else ("", "")
        return self._allow(Call(name, path, kind, call.kind, "forward"))

    def is_gradient(self, tensor: LiveTensor) -> bool:
        """Tell whether a tensor is a parameter's gradient."""
        return self.is_parameter_gradient(tensor.key)

    def describe(self, origin: LiveOrigin) -> None:
        """Write an origin's report, while its tensors are there."""
        call, counts = origin.call, origin.counts
        if origin.kind == "optimizer":
            call.site = origin.shown_at.site  # in the record, too
        line = self._sites.source(origin.shown_at.site)
        parent = call.parent
        told = [*origin.outputs, *origin.inputs]
        shown = next((resolve(item.tensor) for item in told if item.slot == origin.slot), None)
        origin.report = Origin(
            call=self.name(call, origin.phase),
            kind=cast(OriginKind, origin.kind),
            phase=cast(Phase, origin.phase),
            step=origin.step,
            rank=self.rank,
            reason=origin.reason,
            module=self._strings[parent.module] if parent is not None else "",
            source=Source(**line) if line else None,
            mechanism="input" if origin.kind == "data" else "parameter" if origin.kind == "parameter" else "unknown",
            details={
                "slot": origin.slot,
                "nan": counts.nan,
                "posinf": counts.posinf,
                "neginf": counts.neginf,
                "elements": counts.elements,
                **(_form(shown) if shown is not None else {}),
                "inputs": {item.slot: str(item.counts) for item in origin.inputs if not item.counts.clean},
            },
        )

    def found(self, origin: LiveOrigin) -> None:
        """Pass an origin on."""
        self._found(origin)

    def arrived(self, origin: LiveOrigin) -> None:
        """Remember the call through which another rank's values came in."""
        self.arrived_through.append(self.name(origin.call, "forward"))


def _in_module_slot(tensor: LiveTensor, path: str) -> LiveTensor:
    """Return an input of a call in its module's slot, where it is that module's parameter."""
    owner, _, own = tensor.parameter.rpartition(".")
    return replace(tensor, slot=f"parameters.{own}") if own and owner == path else tensor


def _form(tensor: Tensor) -> dict[str, object]:
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
