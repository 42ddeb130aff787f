"""Optimizer steps: each parameter and gradient before, each parameter after, and the hyperparameters as arguments."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks as _post_hooks
from torch.optim.optimizer import _global_optimizer_pre_hooks as _pre_hooks
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from numscope.capture.torch.left import Stepping
from numscope.capture.torch.modules import Modules
from numscope.capture.torch.thread import OwnWork, Undo
from numscope.capture.torch.values import Slot
from numscope.capture.torch.watch import Watch
from numscope.core.nonfinite import SKIPPED_STEP

# The names of a parameter: its label, and its slots `parameters`, `parameters_grad` and `output`.
_Names = tuple[str, int, int, int]
_PART = 16  # tensors at a time: with more, `Watch.record` takes a way that is longer for those that were seen before


class Optimizers:
    """Records every optimizer's step through torch's global step hooks."""

    def __init__(self, watch: Watch, modules: Modules) -> None:
        self._watch = watch
        self._modules = modules
        self._open: dict[int, tuple[int, int, dict[int, int]]] = {}  # id of the optimizer → order, name, versions
        self._followed: dict[int, int] = {}  # id of the optimizer → the last step that was recorded of it
        # id of the optimizer → the ids of its parameters, how many parameters had names then, and the names of its own
        self._names: dict[int, tuple[list[list[int]], int, list[_Names]]] = {}
        self._stepped = False

    def install(self) -> Undo:
        """Register the global hooks, and have loss scalers tell what they skip; return what undoes it."""
        kind: Any = torch.amp.GradScaler
        step = kind.step
        undo_hooks = around_steps(self._before, self._after)

        def stepped(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self._stepped = False
            result = step(scaler, *args, **kwargs)
            if not self._stepped and scaler.is_enabled() and self._watch.on:
                self._watch.recorder.skip(SKIPPED_STEP)
            return result

        def undo() -> None:
            undo_hooks()
            if kind.step is stepped:
                kind.step = step

        kind.step = stepped
        return undo

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._stepped = True
        watch = self._watch
        if watch.thread.busy:
            return
        wanted = watch.on and watch.settings.optimizer
        stepping = None
        if watch.settings.level == "aten" and watch.thread.entered and len(args) == 1 and not kwargs:
            stepping = Stepping(watch.tensors, sys._getframe(1).f_code)
        with OwnWork(watch, "optimizer"), torch.no_grad():
            watch.thread.stepping = None
            watch.tensors.forget_left()
            if watch.tensors.any_settled:
                self._unsettle(optimizer)
            if wanted:
                self._record(optimizer, stepping)
        if not wanted:
            return
        watch.thread.begin_quiet()
        watch.thread.stepping = stepping

    def _unsettle(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure anew what the step writes to, recorded or not; its state too, where no mode sees its operators."""
        watch = self._watch
        for group in optimizer.param_groups:
            watch.tensors.unsettle(*group["params"])
        if not watch.thread.entered:
            watch.tensors.unsettle(*_state(optimizer))

    def _record(self, optimizer: torch.optim.Optimizer, stepping: Stepping | None) -> None:
        watch = self._watch
        recorder = watch.recorder
        series = watch.series(f"Optimizer.{type(optimizer).__name__}", "{head}.step.{n}")
        name = series.name(series.next(recorder.epoch))
        pending, watch.before_call = watch.before_call, None  # several optimizers may end one step together
        wanted = watch.in_scope(name, None, "optimizer", "optimizer")
        watch.before_call = pending
        if not wanted:
            return
        order = recorder.order()
        groups = [
            (str(index), {key: value for key, value in group.items() if key != "params"})
            for index, group in enumerate(optimizer.param_groups)
        ]
        recorder.call(
            order, name, watch.kinds["optimizer"], watch.no_text, watch.no_text, watch.phases["optimizer"], -1, -1,
            watch.arguments([], groups), watch.site(outside_torch(sys._getframe(2))), False, -1, watch.thread_number(),
        )  # fmt: skip
        # The state that a step starts from is what the step before has left; only the first one must be looked at.
        with_state = self._followed.get(id(optimizer)) != recorder.step - 1
        self._followed[id(optimizer)] = recorder.step
        before: list[Slot] = []
        parameters = self._parameters(optimizer)
        for (label, slot, gradient_slot, _), parameter in parameters:
            before.append((slot, parameter))
            if (gradient := parameter.grad) is not None:
                before.append((gradient_slot, gradient))
            if with_state:
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, torch.Tensor):
                        before.append((watch.slot_id(f"state.{label}", key), value))
        rows = self._show(order, before, name)
        if stepping is not None and self._is_last(optimizer):
            for (_, tensor), number in zip(before, rows[2::4]):
                watch.tensors.vouch(tensor, number)
        versions = {id(parameter): parameter._version for _, parameter in parameters}
        self._open[id(optimizer)] = (order, name, versions)

    def _parameters(self, optimizer: torch.optim.Optimizer) -> list[tuple[_Names, torch.Tensor]]:
        """Return the parameters that a step may write to, with their names, which are made once."""
        groups = [group["params"] for group in optimizer.param_groups]
        ids = [list(map(id, group)) for group in groups]
        known = self._names.get(id(optimizer))
        if known is None or known[0] != ids or known[1] != self._modules.named:
            slot = self._watch.slot_id
            names: list[_Names] = []
            for group_index, group in enumerate(groups):
                for index, parameter in enumerate(group):
                    label = self._modules.parameter_name(parameter) or f"group{group_index}.{index}"
                    of_gradient = slot("parameters_grad", label)
                    names.append((label, slot("parameters", label), of_gradient, slot("output", label)))
            known = self._names[id(optimizer)] = ids, self._modules.named, names
        both = zip(known[2], itertools.chain.from_iterable(groups))
        return [(names, one) for names, one in both if one.requires_grad or one.grad is not None]

    def _show(self, order: int, slots: list[Slot], name: int) -> list[int]:
        """Record tensors, all at once where their device gains by it; return their rows."""
        watch = self._watch
        rows: list[int] = []
        with watch.recorder.together():
            for first in range(0, len(slots), _PART):
                rows += watch.record(order, slots[first : first + _PART], name)
        return rows

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        watch = self._watch
        stepping = watch.thread.stepping
        watch.thread.end_quiet()
        opened = self._open.pop(id(optimizer), None)
        if not watch.on or watch.thread.busy:
            return
        with OwnWork(watch, "optimizer"), torch.no_grad():
            tensors = watch.tensors
            if stepping is not None:
                stepping.go_on(self._is_first(optimizer))
            if opened is not None:
                self._record_results(optimizer, *opened)
            else:
                tensors.written_unseen(*[parameter for _, parameter in self._parameters(optimizer)])
            if tensors.any_left:
                for tensor in _state(optimizer):
                    number = tensors.left(tensor)
                    if number < 0:
                        tensors.written_unseen(tensor)
                    elif watch.recorder.measures:
                        tensors.settle(tensor, number)
                tensors.forget_left()
            else:
                tensors.written_unseen(*_state(optimizer))
            watch.flush_if_full()

    def _record_results(
        self, optimizer: torch.optim.Optimizer, order: int, name: int, versions: dict[int, int]
    ) -> None:
        watch = self._watch
        tensors = watch.tensors
        outputs = [(names[3], parameter) for names, parameter in self._parameters(optimizer)]
        # Fused kernels write without telling: measure anew.
        untold = [parameter for _, parameter in outputs if versions.get(id(parameter)) == parameter._version]
        tensors.distrust(*[one for one in untold if not tensors.is_left(one)] if tensors.any_left else untold)
        rows = self._show(order, outputs, name)
        if watch.sees_exposures and watch.thread.entered and watch.recorder.measures:
            for (_, parameter), number in zip(outputs, rows[2::4]):
                tensors.settle(parameter, number)  # what writes to it from here on is seen

    def _is_last(self, optimizer: torch.optim.Optimizer) -> bool:
        """Tell whether no code of the user's runs before the step's first operator: no hook of theirs."""
        return not optimizer._optimizer_step_pre_hooks and _is_next_to(self._before, reversed(_pre_hooks.values()))

    def _is_first(self, optimizer: torch.optim.Optimizer) -> bool:
        """Tell whether no code of the user's has run since the step's last operator."""
        return not optimizer._optimizer_step_post_hooks and _is_next_to(self._after, iter(_post_hooks.values()))


def _is_next_to(ours: Any, hooks: Iterator[Any]) -> bool:
    """Tell whether none but our own hooks come before this one."""
    for hook in hooks:
        if hook == ours:
            return True
        if not str(getattr(hook, "__module__", "")).startswith("numscope."):
            return False
    return False


def _state(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [
        value
        for values in optimizer.state.values()
        if isinstance(values, dict)
        for value in values.values()
        if isinstance(value, torch.Tensor)
    ]


def around_steps(before: Callable[..., None], after: Callable[..., None]) -> Undo:
    """Have both called around every optimizer's step; return what ends it."""
    handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def outside_torch(frame: Any) -> Any:
    while frame is not None and "torch" in frame.f_globals.get("__name__", "").split(".")[:1]:
        frame = frame.f_back
    return frame
