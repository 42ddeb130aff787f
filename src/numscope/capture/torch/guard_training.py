"""The guard on what surrounds the model: optimizers, loss scalers, collectives."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from numscope.capture.torch.collectives import Collectives
from numscope.capture.torch.flags import is_finite
from numscope.capture.torch.guard_calls import Item, Seen, key_of
from numscope.capture.torch.optimizer import around_steps, outside_torch
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.values import Slot

Tensor = torch.Tensor
_MANY = 40  # steps skipped in a row that no loss scale explains: it halves each time


class GuardOptimizers:
    """Looks at gradients before a step, and at parameters after it."""

    def __init__(self, guard: Any, after_step: Callable[[], None]) -> None:
        self._guard = guard
        self._after_step = after_step
        self._open: dict[int, tuple[Seen, list[Item]]] = {}
        self._finite: dict[int, int] = {}  # parameters that were finite after their last step → their version
        self.stepped = False

    def install(self) -> Undo:
        """Register the global hooks; return what removes them."""
        return around_steps(self._before, self._after)

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        guard = self._guard
        watch = guard.watch
        if not watch.on or watch.thread.busy:
            return
        self.stepped = True
        guard.end_pass()
        series = watch.series(f"Optimizer.{type(optimizer).__name__}", "{head}.step.{n}")
        site = watch.site(outside_torch(sys._getframe(1)))
        seen = Seen(series, series.next(guard.recorder.epoch), "optimizer", "", None, site)
        scaled = hasattr(optimizer, "found_inf")  # a fused step under a scaler skips itself
        given = [] if scaled else self._given(optimizer)
        guard.late.launch()  # what waits may be overwritten
        self._open[id(optimizer)] = (seen, given)
        if not scaled:
            guard.control(guard.judge.stepping, given)  # nobody skips this step
        if type(optimizer).__module__.startswith("torch.optim"):
            watch.thread.begin_quiet()
        else:
            guard.control(guard.judge.set_inside, True)

    def _given(self, optimizer: torch.optim.Optimizer) -> list[Item]:
        """Return the gradients and parameters; of the CPU's only those that are not finite."""
        guard = self._guard
        marks = guard.judge.marks
        given: list[Item] = []
        late: list[tuple[str, Tensor, str]] = []
        with guard.unseen(), torch.no_grad():
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
        guard.watch.thread.end_quiet()
        guard.control(guard.judge.set_inside, False)
        opened = self._open.pop(id(optimizer), None)
        if opened is None or not guard.watch.on or guard.watch.thread.busy:
            return
        seen, given = opened
        made = []
        late = []
        with guard.unseen(), torch.no_grad():
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
            if made:
                guard.submit(guard.judge.optimizer, seen, given, made, late=bool(late))
        self._after_step()


class Scalers:
    """Knows a loss scale: gradients that overflow under it are found by the scaler, which skips the step."""

    def __init__(self, guard: Any) -> None:
        self._guard = guard
        self._row = 0  # steps skipped one after another

    def install(self) -> Undo:
        """Replace GradScaler's `scale` and `step`; return what puts them back."""
        kind: Any = torch.amp.GradScaler
        scale, step = kind.scale, kind.step
        judge = self._guard.judge
        control = self._guard.control

        def scaled(scaler: Any, outputs: Any) -> Any:
            if not scaler.is_enabled():
                return scale(scaler, outputs)
            control(judge.set_scaled, self._explains(scaler), True)
            try:
                return scale(scaler, outputs)
            finally:
                control(judge.set_scaled, self._explains(scaler), False)

        def stepped(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled():
                return step(scaler, optimizer, *args, **kwargs)
            optimizers = self._guard.optimizers
            optimizers.stepped = False
            result = step(scaler, optimizer, *args, **kwargs)
            if optimizers.stepped:
                self._row = 0
            else:
                self._row += 1
                self._guard.skipped()
            control(judge.settle)
            return result

        kind.scale, kind.step = scaled, stepped

        def undo() -> None:
            kind.scale, kind.step = scale, step

        return undo

    def _explains(self, scaler: Any) -> bool:
        """Tell whether an overflow can be the scale's doing: it is above 1, and has not been tried for long."""
        value = scaler._scale
        if value is not None and value.is_cpu and float(value) <= 1.0:
            return False
        return self._row < _MANY


class GuardCollectives(Collectives):
    """Looks at what this rank gives and gets."""

    def __init__(self, guard: Any) -> None:
        super().__init__(guard.watch)
        self._guard = guard
        self._calls: dict[int, tuple[Seen, str, list[Item], int]] = {}
        self._count = 0

    def _before(self, name: str, group: Any, args: Any, kwargs: Any, reads: tuple[int, ...]) -> tuple[int, int] | None:
        guard = self._guard
        watch = guard.watch
        series = watch.series(f"Distributed.{name}")
        stack = watch.thread.stack
        parent = stack[-1] if stack else None
        site = watch.site(sys._getframe(4))
        seen = Seen(series, series.next(guard.recorder.epoch), "collective", name, parent, site)
        slots: list[Slot] = watch.flatten("input", [args[place] for place in reads if place < len(args)], [])
        phase = "forward" if torch._C._current_graph_task_id() == -1 else "backward"
        self._count += 1
        self._calls[self._count] = (seen, phase, self._items(slots), group.size())
        guard.late.launch()  # the backend writes without telling
        return self._count, 0

    def _items(self, slots: list[Slot], fresh: bool = False) -> list[Item]:
        guard = self._guard
        texts = guard.recorder.strings
        late = [slot for slot in slots if guard.is_late(slot[1])]
        found = [guard.now.item(texts[slot], tensor) for slot, tensor in slots if not guard.is_late(tensor)]
        if late:
            look = guard.late.again if fresh else guard.late.all
            looks = look([(tensor, guard.parameter(tensor)) for _, tensor in late])
            for (slot, tensor), seen in zip(late, looks):
                found.append(Item(texts[slot], seen.key, None, seen, seen.parameter, weakref.ref(tensor)))
                seen.tensor = None
        return found

    def _after(self, order: int, name: int, written: list[Any]) -> None:
        guard = self._guard
        seen, phase, given, world = self._calls.pop(order)
        outputs = guard.watch.flatten("output", written, [])
        late = any(guard.is_late(tensor) for _, tensor in outputs)
        if late or not all(is_finite(tensor) for _, tensor in outputs):
            made = self._items(outputs, fresh=True)
            guard.submit(guard.judge.collective, seen, phase, given, made, world, late=late)

    def _guarded(self, work: Any, where: str) -> Any:
        with self._guard.unseen(), torch.no_grad():
            return work()
