"""Optimizer steps: each parameter and gradient before, each parameter after, and the hyperparameters as arguments."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import chain, compress, repeat
from operator import attrgetter, is_
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks as _post_hooks
from torch.optim.optimizer import _global_optimizer_pre_hooks as _pre_hooks

from numscope.capture.recording.rows import tensors_of
from numscope.capture.torch.identity.subclasses import PLAIN
from numscope.capture.torch.levels.modules import Modules
from numscope.capture.torch.levels.optimizer_operators import OptimizerStep
from numscope.capture.torch.levels.step_hooks import around_steps
from numscope.capture.torch.own_code import OwnComputation
from numscope.capture.torch.patching import replace, together
from numscope.capture.torch.program import attributes_of
from numscope.capture.torch.slots import Argument, Arguments, Keywords, Slot, slots_of
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.watch import Watch
from numscope.core.job_files.program import Value
from numscope.nonfinite.rule import SKIPPED_STEP

_version = attrgetter("_version")
_gradient = attrgetter("grad")
_requires_grad = attrgetter("requires_grad")

# The class that scales losses; before torch 2.3 there is that for CUDA alone.
GRAD_SCALER: type[torch.amp.GradScaler] = (
    torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler
)


class _Names(NamedTuple):
    """The names of an optimizer's parameters: their labels, and their slots before the step and after it."""

    labels: Sequence[str]
    parameters: Sequence[int]
    gradients: Sequence[int]
    outputs: Sequence[int]


class _KnownNames(NamedTuple):
    """Names that were made once, and hold for the same parameters."""

    ids: list[list[int]]  # of the parameters, in their groups
    named: int  # how many parameters had names then
    names: _Names


class BegunStep(NamedTuple):
    """A step that has begun."""

    order: int
    name: int
    versions: dict[int, int]  # of the parameters, by their ids


class Optimizers:
    """Records every optimizer's step through torch's global step hooks."""

    def __init__(self, watch: Watch, modules: Modules) -> None:
        self._watch = watch
        self._modules = modules
        self._open: dict[int, BegunStep] = {}  # by the optimizer's id
        self._followed: dict[int, int] = {}  # id of the optimizer → the last step that was recorded of it
        self._names: dict[int, _KnownNames] = {}  # by the optimizer's id
        self._stepped = False
        # The classes of the optimizers whose steps were recorded, with the attributes of the first of each.
        self.classes: dict[type, dict[str, Value]] = {}
        self._running: dict[int, FrameType] = {}  # id of the optimizer → the frame of the step that it is in

    def install(self) -> Undo:
        """Register the global hooks, and have loss scalers tell what they skip; return what undoes it."""
        kind: Any = GRAD_SCALER
        step = kind.step
        undo_hooks = around_steps(self._before, self._after, self._before_region, self._after_region)

        def stepped(scaler: torch.amp.GradScaler, *args: object, **kwargs: object) -> object:
            self._stepped = False
            result = step(scaler, *args, **kwargs)
            if not self._stepped and scaler.is_enabled() and self._watch.on:
                self._watch.recorder.skip(SKIPPED_STEP)
            return result

        return together([undo_hooks, replace(kind, "step", stepped)])

    def _before(self, optimizer: torch.optim.Optimizer, args: Arguments, kwargs: Keywords) -> None:
        self._stepped = True
        watch = self._watch
        if watch.thread.here.busy or self._is_inner(optimizer, sys._getframe(1)):
            return
        wanted = watch.on and watch.settings.optimizer
        stepping = None
        if watch.settings.level == "aten" and watch.thread.here.entered and len(args) == 1 and not kwargs:
            stepping = OptimizerStep(watch.tensors, watch.thread, sys._getframe(1).f_code)
        with OwnComputation(watch, "optimizer"):
            watch.thread.here.optimizer_step = watch.thread.here.known_tensors = None
            watch.tensors.forget_optimizer_writes()
            if watch.tensors.carries_over:
                self._unsettle(optimizer)
            if wanted:
                self._record(optimizer, stepping, sys._getframe(1))
        if not wanted:
            return
        watch.thread.here.begin_quiet()
        watch.thread.here.optimizer_step = stepping

    def _before_region(self, optimizer: torch.optim.Optimizer, frame: FrameType) -> None:
        """Record a step that is a compiled region: what it reads; its operators are not seen."""
        self._stepped = True
        watch = self._watch
        if not watch.thread.here.busy and watch.on and watch.settings.optimizer:
            with OwnComputation(watch, "optimizer"):
                self._record(optimizer, None, frame)

    def _after_region(self, optimizer: torch.optim.Optimizer, frame: FrameType) -> None:
        begun = self._open.pop(id(optimizer), None)
        if self._watch.on and not self._watch.thread.here.busy:
            with OwnComputation(self._watch, "optimizer"):
                self._finish(optimizer, begun)

    def _is_inner(self, optimizer: torch.optim.Optimizer, frame: FrameType) -> bool:
        """Tell whether a step runs within the same optimizer's step: a class of the user's calls the one it extends."""
        around = self._running.get(id(optimizer))
        outer: FrameType | None = frame
        while around is not None and outer is not None:
            if outer.f_back is around:
                return True
            outer = outer.f_back
        self._running[id(optimizer)] = frame  # one whose step raised is replaced
        return False

    def _unsettle(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure anew what the step writes to, recorded or not; its state too, where no mode sees its operators."""
        watch = self._watch
        watch.tensors.drop_carried_over(*chain.from_iterable(group["params"] for group in optimizer.param_groups))
        if not watch.thread.here.entered:
            watch.tensors.drop_carried_over(*_state(optimizer))

    def _record(self, optimizer: torch.optim.Optimizer, stepping: OptimizerStep | None, frame: FrameType) -> None:
        watch = self._watch
        recorder = watch.recorder
        if type(optimizer) not in self.classes:
            self.classes[type(optimizer)] = attributes_of(optimizer)
        series = watch.series(f"Optimizer.{type(optimizer).__name__}", "{head}.step.{n}")
        name = series.name(series.next(recorder.epoch))
        pending, watch.before_call = watch.before_call, None  # several optimizers may end one step together
        wanted = watch.in_scope(name, None, "optimizer", "optimizer")
        watch.before_call = pending
        if not wanted:
            return
        order = recorder.order()
        groups: list[Argument] = [
            (str(index), {key: value for key, value in group.items() if key != "params"})
            for index, group in enumerate(optimizer.param_groups)
        ]
        row = watch.call_row(
            order,
            name,
            watch.kinds["optimizer"],
            watch.no_text,
            watch.no_text,
            watch.phases["optimizer"],
            arguments=watch.arguments([], groups),
            stack=watch.site(outside_torch(frame)),
        )
        recorder.call(row)
        # The state that a step starts from is what the step before has left; only the first one must be looked at.
        with_state = self._followed.get(id(optimizer)) != recorder.step - 1
        self._followed[id(optimizer)] = recorder.step
        names, parameters = self._parameters(optimizer)
        before = _before_step(names, parameters)
        if with_state:
            before = list(self._with_state(optimizer, names, parameters))
        rows = self._show(order, before, name)
        if stepping is not None and self._is_last(optimizer):
            watch.tensors.trust_measured([tensor for _, tensor in before], tensors_of(rows))
        versions = dict(zip(map(id, parameters), map(_version, parameters)))
        self._open[id(optimizer)] = BegunStep(order, name, versions)
        watch.thread.here.calling = order

    def _with_state(
        self, optimizer: torch.optim.Optimizer, names: _Names, parameters: Sequence[torch.Tensor]
    ) -> Iterator[Slot]:
        """Return parameters and gradients with their slots, each with the state that the optimizer has of it."""
        for label, slot, gradient_slot, _, parameter in zip(*names, parameters):
            yield Slot(slot, parameter)
            if (gradient := parameter.grad) is not None:
                yield Slot(gradient_slot, gradient)
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    yield Slot(self._watch.slot_id(f"state.{label}", key), value)

    def _parameters(self, optimizer: torch.optim.Optimizer) -> tuple[_Names, Sequence[torch.Tensor]]:
        """Return the parameters that a step may write to, with their names, which are made once."""
        groups = [group["params"] for group in optimizer.param_groups]
        ids = [list(map(id, group)) for group in groups]
        known = self._names.get(id(optimizer))
        if known is None or known.ids != ids or known.named != self._modules.named:
            slot = self._watch.slot_id
            labels = [
                self._modules.parameter_name(parameter) or f"group{group_index}.{index}"
                for group_index, group in enumerate(groups)
                for index, parameter in enumerate(group)
            ]
            kinds = ("parameters", "parameters_grad", "output")
            names = _Names(labels, *([slot(kind, label) for label in labels] for kind in kinds))
            known = self._names[id(optimizer)] = _KnownNames(ids, self._modules.named, names)
        names, parameters = known.names, list(chain.from_iterable(groups))
        if not all(map(_requires_grad, parameters)):
            wanted = [one.requires_grad or one.grad is not None for one in parameters]
            names = _Names._make(list(compress(column, wanted)) for column in names)
            parameters = list(compress(parameters, wanted))
        return names, parameters

    def _show(self, order: int, slots: list[Slot], name: int) -> list[int]:
        """Record tensors, all at once where their device gains by it; return their rows."""
        with self._watch.recorder.together():
            return self._watch.record(order, slots, name)

    def _after(self, optimizer: torch.optim.Optimizer, args: Arguments, kwargs: Keywords) -> None:
        watch = self._watch
        if self._running.get(id(optimizer), frame := sys._getframe(1)) is not frame:
            return
        self._running.pop(id(optimizer), None)
        stepping, asked = watch.thread.here.optimizer_step, watch.thread.here.known_tensors
        watch.thread.here.calling = -1
        watch.thread.here.end_quiet()
        begun = self._open.pop(id(optimizer), None)
        if not watch.on or watch.thread.here.busy:
            return
        with OwnComputation(watch, "optimizer"):
            if stepping is not None:
                watch.thread.here.known_tensors = asked
                stepping.go_on(self._is_first(optimizer))
            self._finish(optimizer, begun)

    def _finish(self, optimizer: torch.optim.Optimizer, begun: BegunStep | None) -> None:
        """Record what a step has left, and know its writes."""
        watch = self._watch
        tensors = watch.tensors
        if watch.thread.here.known_tensors is None:
            watch.thread.here.known_tensors = {}
        if begun is not None:
            self._record_results(optimizer, begun)
        else:
            _, parameters = self._parameters(optimizer)
            tensors.note_possible_writes(parameters)
        state = _state(optimizer)
        if tensors.has_optimizer_writes:
            numbers = tensors.numbers_after_optimizer(state, watch.thread.here.known_tensors)
            if -1 in numbers:
                tensors.note_possible_writes([tensor for tensor, number in zip(state, numbers) if number < 0])
            if watch.recorder.measures:
                tensors.carry_over(state, numbers, watch.thread.here.known_tensors)
            tensors.forget_optimizer_writes()
        else:
            tensors.note_possible_writes(state)
        watch.flush_if_full()
        watch.thread.here.known_tensors = None

    def _record_results(self, optimizer: torch.optim.Optimizer, begun: BegunStep) -> None:
        watch = self._watch
        tensors = watch.tensors
        names, parameters = self._parameters(optimizer)
        # Fused kernels write without telling: measure anew.
        before = list(map(begun.versions.get, map(id, parameters)))
        now = list(map(_version, parameters))
        untold = parameters
        if before != now:
            untold = [parameter for parameter, old, new in zip(parameters, before, now) if old == new]
        tensors.mark_all_unversioned(tensors.not_written_by_optimizer(untold))
        rows = self._show(begun.order, slots_of(names.outputs, parameters), begun.name)
        sees_writes = watch.thread.here.entered or watch.unversioned_writes is not None
        if sees_writes and watch.recorder.measures:
            # What writes to them from here on is seen.
            tensors.carry_over(parameters, tensors_of(rows), watch.thread.here.known_tensors)

    def _is_last(self, optimizer: torch.optim.Optimizer) -> bool:
        """Tell whether no code of the user's runs before the step's first operator: no hook of theirs."""
        return not optimizer._optimizer_step_pre_hooks and _is_next_to(self._before, reversed(_pre_hooks.values()))

    def _is_first(self, optimizer: torch.optim.Optimizer) -> bool:
        """Tell whether no code of the user's has run since the step's last operator."""
        return not optimizer._optimizer_step_post_hooks and _is_next_to(self._after, iter(_post_hooks.values()))


def _is_next_to(ours: object, hooks: Iterator[object]) -> bool:
    """Tell whether none but our own hooks come before this one."""
    for hook in hooks:
        if hook == ours:
            return True
        if not str(getattr(hook, "__module__", "")).startswith("numscope."):
            return False
    return False


def _before_step(names: _Names, parameters: Sequence[torch.Tensor]) -> list[Slot]:
    """Return parameters and their gradients with their slots."""
    gradients = list(map(_gradient, parameters))
    labels = chain.from_iterable(zip(names.parameters, names.gradients))
    tensors = chain.from_iterable(zip(parameters, gradients))
    if any(map(is_, gradients, repeat(None))):
        return [Slot(name, tensor) for name, tensor in zip(labels, tensors) if tensor is not None]
    return slots_of(labels, tensors)


def _state(optimizer: torch.optim.Optimizer) -> Sequence[torch.Tensor]:
    groups: list[Any] = [values for values in optimizer.state.values() if isinstance(values, dict)]
    state = list(chain.from_iterable(map(dict.values, groups)))
    return (
        state if PLAIN.issuperset(map(type, state)) else [value for value in state if isinstance(value, torch.Tensor)]
    )


def outside_torch(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is not torch's own."""
    while frame is not None and "torch" in frame.f_globals.get("__name__", "").split(".")[:1]:
        frame = frame.f_back
    return frame
