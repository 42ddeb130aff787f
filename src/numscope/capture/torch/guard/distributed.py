"""The guard on several ranks: what collectives bring, and shapes that pipelines infer with memory nobody wrote."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from numscope.capture.torch.guard.calls import LiveCall
from numscope.capture.torch.guard.flags import is_finite
from numscope.capture.torch.guard.guarded_job import GuardedJob
from numscope.capture.torch.guard.on_cpu import live_tensor
from numscope.capture.torch.guard.tracking import LiveTensor
from numscope.capture.torch.levels.collectives import Collectives
from numscope.capture.torch.own_code import OwnComputation
from numscope.capture.torch.patching import replace, together
from numscope.capture.torch.slots import Slot
from numscope.capture.torch.thread import Undo

Tensor = torch.Tensor
# Methods of a pipeline's stage that run a step on uninitialised memory.
_INFERENCE = ("_shape_inference", "_forward_metadata_inference", "_backward_metadata_inference")


class _Begun(NamedTuple):
    """A collective that has begun."""

    call: LiveCall
    phase: str
    given: list[LiveTensor]
    ranks: int  # in its group


class GuardCollectives(Collectives):
    """Looks at what this rank gives and gets."""

    def __init__(self, job: GuardedJob) -> None:
        super().__init__(job.watch)
        self._job = job
        self._begun: dict[int, _Begun] = {}
        self._count = 0

    def _before(self, name: str, group: Any, args: Any, kwargs: Any, reads: tuple[int, ...]) -> tuple[int, int] | None:
        job = self._job
        watch = job.watch
        series = watch.series(f"Distributed.{name}")
        stack = watch.thread.here.stack
        parent = stack[-1] if stack else None
        site = watch.site(sys._getframe(4))
        call = LiveCall(series, series.next(job.recorder.epoch), "collective", name, parent, site)
        slots: list[Slot] = watch.flatten("input", [args[place] for place in reads if place < len(args)], [])
        phase = "forward" if torch._C._current_graph_task_id() == -1 else "backward"
        self._count += 1
        self._begun[self._count] = _Begun(call, phase, self._tensors(slots), group.size())
        job.late.launch()  # the backend writes without telling autograd's version counter
        return self._count, 0

    def _tensors(self, slots: list[Slot], fresh: bool = False) -> list[LiveTensor]:
        job = self._job
        names = job.recorder.strings
        late = [(slot, tensor) for slot, tensor in slots if job.is_late(tensor)]
        tensors = [live_tensor(job, names[slot], tensor) for slot, tensor in slots if not job.is_late(tensor)]
        if late:
            look_at = job.late.again if fresh else job.late.all
            looks = look_at([(tensor, job.parameter(tensor)) for _, tensor in late])
            for (slot, tensor), look in zip(late, looks):
                tensors.append(LiveTensor(names[slot], look.key, None, look, look.parameter, weakref.ref(tensor)))
                look.tensor = None
        return tensors

    def _after(self, order: int, name: int, written: list[Any]) -> None:
        job = self._job
        call, phase, given, ranks = self._begun.pop(order)
        outputs = job.watch.flatten("output", written, [])
        late = any(job.is_late(tensor) for _, tensor in outputs)
        if late or not all(is_finite(tensor) for _, tensor in outputs):
            made = self._tensors(outputs, fresh=True)
            submit = job.judge_later if late else job.judge
            submit(job.tracker.collective, call, phase, given, made, alone=ranks == 1)

    def _guarded(self, work: Any, where: str) -> Any:
        with OwnComputation(self._job.watch, where):
            return work()
        return None


class PipelineShapes:
    """Looks away while a pipeline runs a step on uninitialised memory, to infer shapes."""

    def __init__(self, job: GuardedJob) -> None:
        self._watch = job.watch

    def install(self) -> Undo:
        """Replace the methods that do so, where pipelines are loaded; return what puts them back."""
        stage = getattr(sys.modules.get("torch.distributed.pipelining.stage"), "PipelineStage", None)
        own = {name: method for name in _INFERENCE if (method := vars(stage or object).get(name)) is not None}
        return together([replace(stage, name, self._unwatched(method)) for name, method in own.items()])

    def _unwatched(self, method: Callable[..., object]) -> Callable[..., object]:
        watch = self._watch

        @functools.wraps(method)
        def infer(*args: object, **kwargs: object) -> object:
            on, watch.on = watch.on, False
            try:
                return method(*args, **kwargs)
            finally:
                watch.on = on

        return infer
