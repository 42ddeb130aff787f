"""PyTorch's side of the guard: what is installed, and what ends a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from numscope.capture import ranks
from numscope.capture.torch.guard.backward import Losses
from numscope.capture.torch.guard.distributed import GuardCollectives
from numscope.capture.torch.guard.guarded_job import ROOM, GuardedJob
from numscope.capture.torch.guard.mode import GuardMode, GuardModules, WriteMode, watch_call
from numscope.capture.torch.guard.on_device import CudaGraphs
from numscope.capture.torch.guard.optimizers import GuardOptimizers, LossScalers
from numscope.capture.torch.guard.tracking import LiveOrigin
from numscope.capture.torch.install import Installed
from numscope.capture.torch.levels.autograd_function import Functions
from numscope.capture.torch.levels.pipelines import PipelineShapes
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.verify.judging import CheckRow
from numscope.capture.torch.verify.live import origin_of
from numscope.core.report import Origin
from numscope.core.settings import GuardSettings
from numscope.store.writer import RunWriter


class _Part(Protocol):
    """Something that is installed in torch."""

    def install(self) -> Undo:
        """Install it; return what takes it away again."""


class TorchGuard(Installed):
    """Watches for what is not finite."""

    def __init__(
        self,
        settings: GuardSettings,
        models: dict[str, torch.nn.Module],
        found: Callable[[Origin, Callable[[], int]], None],
        open_writer: Callable[[], RunWriter],
        after_step: Callable[[], None],
        step_skipped: Callable[[], None],
    ) -> None:
        def tell(origin: LiveOrigin) -> None:
            found(origin.report, lambda: self.job.write_record(origin))

        self.job = job = GuardedJob(settings, models, tell, open_writer, step_skipped)
        self._optimizers = GuardOptimizers(job, after_step)
        job.tracking.is_parameter_gradient = self._optimizers.is_gradient
        self._scalers = LossScalers(job, self._optimizers)
        self._collectives = GuardCollectives(job)
        self._steps = 0
        modules = GuardModules(job, models)
        job.name_parameter = modules.parameter_name
        below = self._verifier(found) if settings.verify else None
        super().__init__(job.watch, models, modules, self._mode_for(models), below)

    def _verifier(self, found: Callable[[Origin, Callable[[], int]], None]) -> TorchDispatchMode:
        """Return the mode that holds calls against exact arithmetic, and gives those that are wrong to the guard."""
        from numscope.capture.torch.verify.verifier import verifier

        job = self.job

        def failed(row: CheckRow) -> None:
            found(origin_of(row, job.recorder.step, ranks.current()[0]), lambda: job.write_record(None))

        return verifier(job.watch, job.settings.verify, failed)

    def _mode_for(self, models: dict[str, torch.nn.Module]) -> GuardMode | WriteMode | None:
        """Return the mode: at module level only where what waits to be looked at could be overwritten unseen."""
        settings = self.job.settings
        if settings.level != "module":
            return GuardMode(self.job)
        late = settings.deferred or any(not p.is_cpu for model in models.values() for p in model.parameters())
        return WriteMode(self.job) if late or not models else None

    def start(self) -> None:
        """Begin to watch."""
        job = self.job
        self.watch.thread.here.last = None
        job.tracking.rank, job.tracker.world = ranks.current()
        job.tracker.set_always_scaled(job.settings.scaled)
        parts: list[_Part] = [
            self._optimizers,
            self._scalers,
            self._collectives,
            CudaGraphs(job),
            PipelineShapes(job.watch),
        ]
        if job.settings.level == "module":
            parts.append(Losses(job))
        else:
            parts.append(Functions(job.watch, lambda watch, *call: watch_call(job, *call)))
        self.install(*parts)
        job.recorder.begin_step(job.tracker.step)
        self.watch.on = not self.regions.gave_way

    def stop(self) -> None:
        """Undo everything that start did."""
        super().stop()
        self.watch.thread.here.stack.clear()

    def new_step(self, step: int) -> None:
        """End a step, and begin the one of this number."""
        self.job.begin_step(step)
        self._make_room()

    def _make_room(self) -> None:
        """Say how much of the device's memory the ring may keep alive; looked at again while the job's peak may grow."""
        job = self.job
        self._steps += 1
        if job.settings.memory is None and self._steps <= 3 and job.late.device is not None:
            job.ring.room = room_on(job.late.device)
            job.late.room = max(job.ring.room // 4, 1)

    def finish(self) -> None:
        """Judge all that is still on a device."""
        self.job.finish()

    @property
    def arrived_through(self) -> list[str]:
        """The calls through which another rank's values came in."""
        return self.job.tracking.arrived_through

    def write_last_calls(self) -> int:
        """Write a record without an origin."""
        return self.job.write_record(None)


class DeviceMemory(Protocol):
    """A device's memory, as torch.cuda tells of it."""

    def mem_get_info(self, device: torch.device, /) -> tuple[int, int]:
        """Return the bytes that are free, and all of them."""

    def memory_reserved(self, device: torch.device, /) -> int:
        """Return the bytes that torch's allocator has."""

    def max_memory_allocated(self, device: torch.device, /) -> int:
        """Return the bytes that the job had at its peak."""


def room_on(device: torch.device, memory: DeviceMemory = torch.cuda) -> int:
    """Return the bytes that may be kept alive on a device: a twentieth, and half of what the job leaves at its peak."""
    if device.type != "cuda":
        return ROOM
    free, total = memory.mem_get_info(device)
    left = free + memory.memory_reserved(device) - memory.max_memory_allocated(device)
    return max(min(int(total) // 20, int(left) // 2), 0)
