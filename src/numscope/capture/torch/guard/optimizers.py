"""The guard on optimizers and loss scalers: what is around a step, what can be said of one that went wrong, and which are
skipped."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from numscope.capture.torch import patching
from numscope.capture.torch.guard.calls import LiveCall, key_of
from numscope.capture.torch.guard.flags import is_finite
from numscope.capture.torch.guard.guarded_job import GuardedJob
from numscope.capture.torch.guard.on_cpu import live_tensor
from numscope.capture.torch.guard.tracking import LiveTensor
from numscope.capture.torch.levels.optimizer import GRAD_SCALER, outside_torch
from numscope.capture.torch.levels.step_hooks import around_steps
from numscope.capture.torch.own_code import OwnCode, OwnComputation
from numscope.capture.torch.thread import Undo
from numscope.nonfinite.rule import Counts
from numscope.nonfinite.tracker import StepDetails

Tensor = torch.Tensor
Optimizer = torch.optim.Optimizer
_MANY = 40  # steps skipped in a row that no loss scale explains: it halves each time


class GuardOptimizers:
    """Looks at gradients before a step, and at parameters after it."""

    def __init__(self, job: GuardedJob, after_step: Callable[[], None]) -> None:
        self._job = job
        self._after_step = after_step
        self._open: dict[int, tuple[LiveCall, list[LiveTensor]]] = {}
        self._finite: dict[int, int] = {}  # parameters that were finite after their last step → their version
        self._steps = 0  # how many there were
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.stepped = False

    def install(self) -> Undo:
        """Register the global hooks; return what removes them."""
        original = Optimizer.zero_grad

        @functools.wraps(original)
        def zero_grad(optimizer: Optimizer, *args: object, **kwargs: object) -> None:
            # Nothing is made here; under a mode each gradient that is let go would be several calls of ours.
            self._known.add(optimizer)
            self._job.late.launch()
            with OwnCode(self._job.watch):
                original(optimizer, *args, **kwargs)  # type: ignore[arg-type]

        undo = around_steps(self._before, self._after)
        return patching.together([undo, patching.replace(Optimizer, "zero_grad", zero_grad)])

    def is_gradient(self, key: int) -> bool:
        """Tell whether a storage is that of a gradient which an optimizer, or a model, has."""
        return any(parameter.grad is not None and key_of(parameter.grad) == key for parameter in self._all_parameters())

    def _all_parameters(self) -> Iterator[Tensor]:
        for optimizer in self._known:
            for group in optimizer.param_groups:
                yield from group["params"]
        for model in self._job.models.values():
            yield from model.parameters()

    def _before(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        job = self._job
        watch = job.watch
        if not watch.on or watch.thread.here.busy:
            return
        self.stepped = True
        self._known.add(optimizer)
        with OwnCode(watch, "an optimizer's step"):
            self._begin(optimizer)
        if type(optimizer).__module__.startswith("torch.optim"):
            watch.thread.here.begin_quiet()
        else:
            job.control(job.tracker.set_inside_optimizer, True)

    def _begin(self, optimizer: Optimizer) -> None:
        job = self._job
        job.end_pass()
        series = job.watch.series(f"Optimizer.{type(optimizer).__name__}", "{head}.step.{n}")
        site = job.watch.site(outside_torch(sys._getframe(2)))
        call = LiveCall(series, series.next(job.recorder.epoch), "optimizer", "", None, site)
        scaled = hasattr(optimizer, "found_inf")  # a fused step under a scaler skips itself
        given = [] if scaled else self._given(optimizer)
        job.late.launch()  # what waits may be overwritten
        self._open[id(optimizer)] = (call, given)
        if not scaled:
            job.control(job.tracker.stepping, given)  # nobody skips this step

    def _given(self, optimizer: Optimizer) -> list[LiveTensor]:
        """Return the gradients and parameters; of the CPU's only those that are not finite."""
        job = self._job
        given: list[LiveTensor] = []
        late: list[tuple[str, Tensor, str]] = []  # slot, tensor, its name if it is a parameter
        with OwnComputation(job.watch):
            for label, parameter in self._parameters(optimizer):
                for group, tensor in (("parameters", parameter), ("parameters_grad", parameter.grad)):
                    if tensor is None:
                        continue
                    if job.is_late(tensor):
                        late.append((f"{group}.{label}", tensor, label if tensor is parameter else ""))
                    elif tensor is parameter and self._finite.get(id(tensor)) == tensor._version:
                        continue  # as the step before has left it
                    elif not is_finite(tensor):
                        given.append(replace(live_tensor(job, f"{group}.{label}", tensor), parameter=""))
                    elif job.marks:
                        job.marks.drop(key_of(tensor))
            looks = job.late.all([(tensor, name) for _, tensor, name in late]) if late else []
            for (slot, tensor, _), look in zip(late, looks):
                given.append(LiveTensor(slot, look.key, None, look, "", weakref.ref(tensor)))
                if not look.parameter:
                    look.tensor = None  # gradients are the user's to let go
        return given

    def _parameters(self, optimizer: Optimizer) -> list[tuple[str, Tensor]]:
        """Return an optimizer's parameters with their names."""
        named: list[tuple[str, Tensor]] = []
        for group_index, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                if parameter.requires_grad or parameter.grad is not None:
                    name = self._job.name_parameter(parameter) or f"group{group_index}.{index}"
                    named.append((name, parameter))
        return named

    def _after(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        job = self._job
        watch = job.watch
        watch.thread.here.end_quiet()
        job.control(job.tracker.set_inside_optimizer, False)
        opened = self._open.pop(id(optimizer), None)
        if opened is None or not watch.on or watch.thread.here.busy:
            return
        with OwnCode(watch, "an optimizer's step"):
            self._end(optimizer, *opened)
        self._after_step()

    def _end(self, optimizer: Optimizer, call: LiveCall, given: list[LiveTensor]) -> None:
        job = self._job
        made: list[LiveTensor] = []
        late: list[tuple[Tensor, str]] = []
        with OwnComputation(job.watch):
            for label, parameter in self._parameters(optimizer):
                if job.is_late(parameter):
                    late.append((parameter, label))
                elif is_finite(parameter):
                    self._finite[id(parameter)] = parameter._version
                else:
                    self._finite.pop(id(parameter), None)
                    made.append(live_tensor(job, f"output.{label}", parameter))
            if late:
                for (parameter, label), look in zip(late, job.late.again(late)):
                    made.append(LiveTensor(f"output.{label}", look.key, None, look, label, weakref.ref(parameter)))
            self._steps += 1
            if made:
                details = _Details(optimizer, self._parameters, self._is_last(self._steps))
                submit = job.judge_later if late else job.judge
                submit(job.tracker.optimizer, call, given, made, details)

    def _is_last(self, number: int) -> Callable[[], bool]:
        return lambda: number == self._steps


class _Details:
    """Tells what surrounds one parameter's step; asked where the step went wrong, which may be some steps later."""

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: Callable[[Optimizer], list[tuple[str, Tensor]]],
        is_last: Callable[[], bool],
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._parameters = parameters
        self._is_last = is_last

    def __call__(self, label: str) -> StepDetails[LiveTensor]:
        """Return what the step was given, what it left, and a sentence, as far as they are still there."""
        optimizer = self._optimizer()
        if optimizer is None or not self._is_last():
            return StepDetails()
        parameter = next((item for name, item in self._parameters(optimizer) if name == label), None)
        if parameter is None:
            return StepDetails()
        state: dict[str, object] = optimizer.state.get(parameter, {})
        left = [
            LiveTensor(f"output.state.{label}.{key}", 0, Counts(), tensor=value)
            for key, value in state.items()
            if isinstance(value, Tensor)
        ]
        given = [LiveTensor(f"parameters.{label}", 0, Counts(), tensor=parameter, version=parameter._version - 1)]
        if parameter.grad is not None:
            given.append(LiveTensor(f"parameters_grad.{label}", 0, Counts(), tensor=parameter.grad))
        with OwnComputation():
            sentence = _sizes(optimizer, parameter, state)
        return StepDetails(sentence, inputs=given, outputs=left)


def _sizes(optimizer: Optimizer, parameter: Tensor, state: dict[str, object]) -> str:
    """Say how large gradient and state are at the elements that went wrong."""
    group = next(group for group in optimizer.param_groups if any(item is parameter for item in group["params"]))
    facts = []
    if not parameter.is_sparse and (parameter.grad is None or not parameter.grad.is_sparse):
        where = ~torch.isfinite(parameter)
        if parameter.grad is not None:
            facts.append(_size("the gradient", parameter.grad, where))
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.is_floating_point():
                facts.append(_size(key, value, where))
    numbers = [f"{key}={group[key]:g}" for key in ("lr", "eps") if isinstance(group.get(key), float)]
    told = ", ".join([*facts, *numbers])
    return f"; there {told}" if told else ""


def _size(name: str, tensor: Tensor, where: Tensor) -> str:
    values = tensor[where].abs()
    if not bool(torch.isfinite(values).all()):
        return f"{name} is not finite"
    largest = float(values.max())
    return f"{name} is 0" if largest == 0 else f"{name} is {largest:.3g} at most"


class LossScalers:
    """Follows `GradScaler`: gradients that overflow under it are found by the scaler, which skips the step."""

    def __init__(self, job: GuardedJob, optimizers: GuardOptimizers) -> None:
        self._job = job
        self._optimizers = optimizers
        self._skipped = 0  # steps, one after another

    def install(self) -> Undo:
        """Replace GradScaler's `scale` and `step`; return what puts them back."""
        job, optimizers = self._job, self._optimizers
        scale, step = GRAD_SCALER.scale, GRAD_SCALER.step

        def scaled(scaler: torch.amp.GradScaler, outputs: Tensor) -> Tensor:  # or several; handed on as they are
            if not scaler.is_enabled():
                return scale(scaler, outputs)
            job.control(job.tracker.set_scaled, self._explains(scaler), True)
            try:
                return scale(scaler, outputs)
            finally:
                job.control(job.tracker.set_scaled, self._explains(scaler), False)

        def stepped(
            scaler: torch.amp.GradScaler, optimizer: Optimizer, *args: object, **kwargs: object
        ) -> float | None:
            if not scaler.is_enabled():
                return step(scaler, optimizer, *args, **kwargs)
            optimizers.stepped = False
            result = step(scaler, optimizer, *args, **kwargs)
            if optimizers.stepped:
                self._skipped = 0
            else:
                self._skipped += 1
                job.step_skipped()
            job.control(job.tracker.settle)
            return result

        return patching.together(
            [patching.replace(GRAD_SCALER, "scale", scaled), patching.replace(GRAD_SCALER, "step", stepped)]
        )

    def _explains(self, scaler: torch.amp.GradScaler) -> bool:
        """Tell whether an overflow can be the scale's doing: it is above 1, and has not been tried for long."""
        value = scaler._scale
        if value is not None and value.is_cpu and float(value) <= 1.0:
            return False
        return self._skipped < _MANY
