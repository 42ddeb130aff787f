"""The guard on several ranks: the values that collectives bring."""

from __future__ import annotations

import weakref
from types import FrameType
from typing import Any, NamedTuple

import torch

from numscope.capture.torch.guard.calls import LiveCall
from numscope.capture.torch.guard.flags import is_finite
from numscope.capture.torch.guard.guarded_job import GuardedJob
from numscope.capture.torch.guard.on_cpu import live_tensor
from numscope.capture.torch.guard.tracking import LiveTensor
from numscope.capture.torch.levels.collectives import CollectiveCalls
from numscope.capture.torch.slots import Arguments, Slot

Tensor = torch.Tensor


class _Begun(NamedTuple):
    """A collective that has begun."""

    call: LiveCall
    phase: str
    given: list[LiveTensor]
    ranks: int  # in its group


class GuardCollectives(CollectiveCalls[_Begun]):
    """Looks at what this rank gives and gets."""

    def __init__(self, job: GuardedJob) -> None:
        super().__init__(job.watch)
        self._job = job

    def _before(self, name: str, group: Any, args: Arguments, reads: tuple[int, ...], frame: FrameType) -> _Begun:
        job = self._job
        watch = job.watch
        series = watch.series(f"Distributed.{name}")
        stack = watch.thread.here.stack
        parent = stack[-1] if stack else None
        call = LiveCall(series, series.next(job.recorder.epoch), "collective", name, parent, watch.site(frame))
        slots: list[Slot] = watch.flatten("input", [args[place] for place in reads if place < len(args)], [])
        phase = "forward" if torch._C._current_graph_task_id() == -1 else "backward"
        begun = _Begun(call, phase, self._tensors(slots), group.size())
        job.late.launch()  # the backend writes without telling autograd's version counter
        return begun

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

    def _after(self, begun: _Begun, written: list[object]) -> None:
        job = self._job
        outputs = job.watch.flatten("output", written, [])
        late = any(job.is_late(tensor) for _, tensor in outputs)
        if late or not all(is_finite(tensor) for _, tensor in outputs):
            made = self._tensors(outputs, fresh=True)
            submit = job.judge_later if late else job.judge
            submit(job.tracker.collective, begun.call, begun.phase, begun.given, made, alone=begun.ranks == 1)
