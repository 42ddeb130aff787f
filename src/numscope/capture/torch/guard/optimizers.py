"""The guard on optimizers: gradients, parameters and state around a step, and what can be said of a step that went wrong."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from numscope.capture.torch.guard.calls import Item, Seen, key_of
from numscope.capture.torch.guard.flags import is_finite
from numscope.capture.torch.levels.optimizer import around_steps, outside_torch
from numscope.capture.torch.own_code import OwnCode, OwnComputation
from numscope.capture.torch.thread import Undo
from numscope.nonfinite.rule import Counts

Tensor = torch.Tensor


class GuardOptimizers:
    """Looks at gradients before a step, and at parameters after it."""

    def __init__(self, guard: Any, after_step: Callable[[], None]) -> None:
        self._guard = guard
        self._after_step = after_step
        self._open: dict[int, tuple[Seen, list[Item]]] = {}
        self._finite: dict[int, int] = {}  # parameters that were finite after their last step → their version
        self._steps = 0  # how many there were
        self._known: Any = weakref.WeakSet()  # optimizers that were seen
        self.stepped = False

    def install(self) -> Undo:
        """Register the global hooks; return what removes them."""
        kind: Any = torch.optim.Optimizer
        original = kind.zero_grad
        undo_hooks = around_steps(self._before, self._after)

        def zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            """Nothing is born here; under a mode each gradient that is let go would be several calls of ours."""
            self._known.add(optimizer)
            self._guard.late.launch()
            with OwnCode(self._guard.watch):
                original(optimizer, *args, **kwargs)

        def undo() -> None:
            undo_hooks()
            if kind.zero_grad is zero_grad:
                kind.zero_grad = original

        kind.zero_grad = functools.wraps(original)(zero_grad)
        return undo

    def is_gradient(self, key: int) -> bool:
        """Tell whether a storage is that of a gradient which an optimizer, or a model, has."""
        groups = [group["params"] for optimizer in self._known for group in optimizer.param_groups]
        groups += [model.parameters() for model in self._guard.models.values()]
        gradients = (parameter.grad for group in groups for parameter in group)
        return any(gradient is not None and key_of(gradient) == key for gradient in gradients)

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        guard = self._guard
        watch = guard.watch
        if not watch.on or watch.thread.here.busy:
            return
        self.stepped = True
        self._known.add(optimizer)
        with OwnCode(watch, "an optimizer's step"):
            self._begin(optimizer)
        if type(optimizer).__module__.startswith("torch.optim"):
            watch.thread.here.begin_quiet()
        else:
            guard.control(guard.judge.set_inside, True)

    def _begin(self, optimizer: torch.optim.Optimizer) -> None:
        guard = self._guard
        watch = guard.watch
        guard.end_pass()
        series = watch.series(f"Optimizer.{type(optimizer).__name__}", "{head}.step.{n}")
        site = watch.site(outside_torch(sys._getframe(2)))
        seen = Seen(series, series.next(guard.recorder.epoch), "optimizer", "", None, site)
        scaled = hasattr(optimizer, "found_inf")  # a fused step under a scaler skips itself
        given = [] if scaled else self._given(optimizer)
        guard.late.launch()  # what waits may be overwritten
        self._open[id(optimizer)] = (seen, given)
        if not scaled:
            guard.control(guard.judge.stepping, given)  # nobody skips this step

    def _given(self, optimizer: torch.optim.Optimizer) -> list[Item]:
        """Return the gradients and parameters; of the CPU's only those that are not finite."""
        guard = self._guard
        marks = guard.judge.marks
        given: list[Item] = []
        late: list[tuple[str, Tensor, str]] = []
        with OwnComputation(guard.watch):
            for label, parameter in self._parameters(optimizer):
                for group, tensor in (("parameters", parameter), ("parameters_grad", parameter.grad)):
                    if tensor is None:
                        continue
                    if guard.is_late(tensor):
                        late.append((f"{group}.{label}", tensor, label if tensor is parameter else ""))
                    elif tensor is parameter and self._finite.get(id(tensor)) == tensor._version:
                        continue  # as the step before has left it
                    elif not is_finite(tensor):
                        given.append(guard.now.item(f"{group}.{label}", tensor)._replace(parameter=""))
                    elif marks:
                        marks.drop(key_of(tensor))
            looks = guard.late.all([(tensor, name) for _, tensor, name in late]) if late else []
            for (slot, tensor, _), look in zip(late, looks):
                given.append(Item(slot, look.key, None, look, "", weakref.ref(tensor)))
                if not look.parameter:
                    look.tensor = None  # gradients are the user's to let go
        return given

    def _parameters(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, Tensor]]:
        found = []
        for group_index, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                if parameter.requires_grad or parameter.grad is not None:
                    name = self._guard.modules.parameter_name(parameter) or f"group{group_index}.{index}"
                    found.append((name, parameter))
        return found

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        guard = self._guard
        guard.watch.thread.here.end_quiet()
        guard.control(guard.judge.set_inside, False)
        opened = self._open.pop(id(optimizer), None)
        if opened is None or not guard.watch.on or guard.watch.thread.here.busy:
            return
        with OwnCode(guard.watch, "an optimizer's step"):
            self._end(optimizer, *opened)
        self._after_step()

    def _end(self, optimizer: torch.optim.Optimizer, seen: Seen, given: list[Item]) -> None:
        guard = self._guard
        made = []
        late = []
        with OwnComputation(guard.watch):
            for label, parameter in self._parameters(optimizer):
                if guard.is_late(parameter):
                    late.append((label, parameter))
                elif is_finite(parameter):
                    self._finite[id(parameter)] = parameter._version
                else:
                    self._finite.pop(id(parameter), None)
                    made.append(guard.now.item(f"output.{label}", parameter))
            if late:
                looks = guard.late.again([(parameter, label) for label, parameter in late])
                for (label, parameter), look in zip(late, looks):
                    made.append(Item(f"output.{label}", look.key, None, look, label, weakref.ref(parameter)))
            self._steps += 1
            if made:
                around = Around(optimizer, self._parameters, self._is_last(self._steps))
                guard.submit(guard.judge.optimizer, seen, given, made, around, late=bool(late))

    def _is_last(self, number: int) -> Callable[[], bool]:
        return lambda: number == self._steps


class Around:
    """What surrounds one parameter's step; asked for where the step went wrong, which may be some steps later."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Any, is_last: Callable[[], bool]) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._parameters = parameters
        self._is_last = is_last

    def __call__(self, label: str) -> tuple[list[Item], list[Item], str]:
        """Return what the step was given, what it left, and a sentence, as far as they are still there."""
        optimizer = self._optimizer()
        if optimizer is None or not self._is_last():
            return [], [], ""
        parameter = next((item for name, item in self._parameters(optimizer) if name == label), None)
        if parameter is None:
            return [], [], ""
        state = optimizer.state.get(parameter, {})
        left = [
            Item(f"output.state.{label}.{key}", 0, Counts(), tensor=value)
            for key, value in state.items()
            if isinstance(value, Tensor)
        ]
        given = [Item(f"parameters.{label}", 0, Counts(), tensor=parameter, version=parameter._version - 1)]
        if parameter.grad is not None:
            given.append(Item(f"parameters_grad.{label}", 0, Counts(), tensor=parameter.grad))
        with OwnComputation():
            explanation = _explain(optimizer, parameter, state)
        return given, left, explanation


def _explain(optimizer: torch.optim.Optimizer, parameter: Tensor, state: dict[str, Any]) -> str:
    """Say what the step had to do with, at the elements that went wrong."""
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
