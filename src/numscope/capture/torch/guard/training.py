"""The guard on losses, loss scalers and collectives."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

import torch

from numscope.capture.torch.guard.calls import Item, Seen
from numscope.capture.torch.guard.flags import is_finite
from numscope.capture.torch.levels.collectives import Collectives
from numscope.capture.torch.levels.optimizer import outside_torch
from numscope.capture.torch.own_code import OwnCode, OwnComputation
from numscope.capture.torch.slots import Slot
from numscope.capture.torch.thread import Undo

Tensor = torch.Tensor
_REHEARSALS = ("_shape_inference", "_forward_metadata_inference", "_backward_metadata_inference")
_MANY = 40  # steps skipped in a row that no loss scale explains: it halves each time


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


class Losses:
    """Looks at what each backward pass starts from: at module level a loss may be made by calls that are not watched."""

    def __init__(self, guard: Any) -> None:
        self._guard = guard

    def install(self) -> Undo:
        """Replace `torch.autograd.backward`; return what puts it back."""
        original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            watch = self._guard.watch
            if watch.on and not watch.thread.here.busy:
                with OwnComputation(watch, "Tensor.backward"):
                    self._look(tensors)
            return original(tensors, *args, **kwargs)

        torch.autograd.backward = backward

        def undo() -> None:
            if torch.autograd.backward is backward:
                torch.autograd.backward = original

        return undo

    def _look(self, tensors: Any) -> None:
        guard = self._guard
        watch = guard.watch
        given = (
            [tensors] if isinstance(tensors, Tensor) else [item for item in tensors or () if isinstance(item, Tensor)]
        )
        if not given:
            return
        series = watch.series("Tensor.backward")
        site = watch.site(outside_torch(sys._getframe(2)))
        seen = Seen(series, series.next(guard.recorder.epoch), "api", "backward", None, site)
        late = any(guard.is_late(tensor) for tensor in given)
        if late:
            looks = [guard.late.given(tensor, guard.parameter) for tensor in given]
            items = [Item(f"input.{n}", look.key, None, look, "", look.tensor) for n, look in enumerate(looks)]
        elif all(is_finite(tensor) for tensor in given):
            return
        else:
            items = [guard.now.item(f"input.{n}", tensor) for n, tensor in enumerate(given)]
        guard.submit(guard.judge.loss, seen, items, late=late)


class Graphs:
    """CUDA graphs: nothing is looked at while one is captured, and what a replay has written is looked at anew."""

    def __init__(self, guard: Any) -> None:
        self._guard = guard

    def install(self) -> Undo:
        """Replace what begins, ends and replays a graph; return what puts it back."""
        kind: Any = torch.cuda.CUDAGraph
        begin, end, replay = kind.capture_begin, kind.capture_end, kind.replay
        guard = self._guard
        watch = guard.watch
        on: list[bool] = []

        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
            with OwnCode(watch, "a CUDA graph"):
                guard.late.launch_where_made()  # a launch inside would be part of the graph
            on.append(watch.on)
            watch.on = False
            begin(graph, *args, **kwargs)

        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> None:
            try:
                end(graph, *args, **kwargs)
            finally:
                watch.on = on.pop() if on else watch.on

        def replayed(graph: Any) -> None:
            with OwnCode(watch, "a CUDA graph"):
                guard.late.launch_where_made()  # what waits may be overwritten
                guard.late.forget()
            replay(graph)

        new = {"capture_begin": capture_begin, "capture_end": capture_end, "replay": replayed}
        own = {name: vars(kind).get(name) for name in new}
        for name, method in new.items():
            setattr(kind, name, method)

        def undo() -> None:
            for name, method in own.items():
                if method is None:
                    delattr(kind, name)
                else:
                    setattr(kind, name, method)

        return undo


class Rehearsals:
    """Pipelines rehearse a step on memory that nobody wrote, to learn shapes: what comes out of it is nobody's number."""

    def __init__(self, guard: Any) -> None:
        self._watch = guard.watch

    def install(self) -> Undo:
        """Replace what rehearses, where pipelines are loaded; return what puts it back."""
        kind: Any = getattr(sys.modules.get("torch.distributed.pipelining.stage"), "PipelineStage", None)
        own = {name: method for name in _REHEARSALS if (method := vars(kind or object).get(name)) is not None}
        for name, method in own.items():
            setattr(kind, name, self._unwatched(method))

        def undo() -> None:
            for name, method in own.items():
                setattr(kind, name, method)

        return undo

    def _unwatched(self, method: Any) -> Any:
        watch = self._watch

        @functools.wraps(method)
        def rehearse(*args: Any, **kwargs: Any) -> Any:
            on, watch.on = watch.on, False
            try:
                return method(*args, **kwargs)
            finally:
                watch.on = on

        return rehearse


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
        stack = watch.thread.here.stack
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
        with OwnComputation(self._guard.watch, where):
            return work()
        return None
