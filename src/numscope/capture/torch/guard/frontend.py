"""PyTorch's side of the guard: what is installed, what is judged now or later, and the record."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from numscope.capture.recorder import Recorder
from numscope.capture.torch.device_to_host import for_the_writer
from numscope.capture.torch.guard.calls import Ring
from numscope.capture.torch.guard.device_log import LateFlags, Look, Window
from numscope.capture.torch.guard.faults import GuardWatch
from numscope.capture.torch.guard.judge import Judge
from numscope.capture.torch.guard.mode import GuardMode, GuardModules, WriteMode, watch_call
from numscope.capture.torch.guard.on_cpu import Now
from numscope.capture.torch.guard.on_device import Later
from numscope.capture.torch.guard.optimizers import GuardOptimizers
from numscope.capture.torch.guard.record import write
from numscope.capture.torch.guard.strike import Strike
from numscope.capture.torch.guard.training import Graphs, GuardCollectives, Losses, Rehearsals, Scalers
from numscope.capture.torch.install import Installed
from numscope.capture.torch.levels.autograd_function import Functions
from numscope.capture.torch.own_code import OwnCode
from numscope.core.settings import CaptureSettings
from numscope.store.writer import RunWriter

Tensor = torch.Tensor
_ROOM = 256 << 20  # bytes that the ring keeps alive where nothing is said


class TorchGuard(Installed):
    """Watches for what is not finite."""

    def __init__(
        self,
        settings: Any,
        models: dict[str, torch.nn.Module],
        found: Callable[[Strike], None],
        open_writer: Callable[[], RunWriter],
        after_step: Callable[[], None],
        skipped: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.open_writer = open_writer
        self.recorder = Recorder(
            open_writer, None, for_the_writer
        )  # names and stacks alone; a record has one of its own
        self.watch = GuardWatch(self.recorder, CaptureSettings(level=settings.level))
        self.waits = settings.deferred
        self.late = LateFlags(settings.deferred)
        self.judge = Judge(
            self.recorder.strings, self.recorder.sites, settings.allow, self._found, self.late.give_reference
        )
        self.late.wants_all = lambda: len(self.judge.doubts) > 0
        self.skipped = skipped
        self._on_origin = found
        self.ring = Ring(settings.calls, _ROOM if settings.memory is None else settings.memory)
        self.leaves: dict[int, Any] = {}
        self.exits: dict[
            Any, list[Any]
        ] = {}  # the last nodes of modules → the edges that leave them; while a model runs
        self.sound: Any = None  # a weak reference to the last gradient that went out of a module, and was finite
        self.now = Now(self)
        self.later = Later(self)
        self.models = models
        self.optimizers = GuardOptimizers(self, after_step)
        self.judge.is_gradient = self.optimizers.is_gradient
        self._scalers = Scalers(self)
        self._collectives = GuardCollectives(self)
        self._since = 0  # calls on a device since the flags were last read
        self._steps = 0
        self._ended: Window | None = None  # the last window of the step before
        super().__init__(self.watch, models, GuardModules(self, models), self._mode_for(models))

    def _mode_for(self, models: dict[str, torch.nn.Module]) -> Any:
        """Return the mode: at module level only where what waits to be looked at could be overwritten unseen."""
        if self.settings.level != "module":
            return GuardMode(self)
        late = self.waits or any(not p.is_cpu for model in models.values() for p in model.parameters())
        return WriteMode(self) if late or not models else None

    def start(self) -> None:
        """Begin to watch."""
        self.watch.thread.here.last = None
        parts: list[Any] = [self.optimizers, self._scalers, self._collectives, Graphs(self), Rehearsals(self)]
        if self.settings.level != "module":
            record = lambda watch, api, work, args, kwargs, frame: watch_call(self, api, work, args, kwargs, frame)  # noqa: E731
            parts.append(Functions(self.watch, record))
        else:
            parts.append(Losses(self))
        self.install(*parts)
        self.recorder.begin_step(self.judge.step)
        self.watch.on = True

    def stop(self) -> None:
        """Undo everything that start did."""
        super().stop()
        self.watch.thread.here.stack.clear()

    def new_step(self, step: int) -> None:
        """Number calls anew, and send the flags of the step that ended to the host; those of the one before are read."""
        self.recorder.begin_step(step)
        self.ring.step = step
        self.watch.executions.forget()
        self.judge.marks.forget()
        with OwnCode(self.watch, "the end of a step"):
            self._read_flags(step)

    def _read_flags(self, step: int) -> None:
        self.end_pass()
        if self.late.in_use:
            ended = self.late.end(step=True)
            self._since = 0
            before, self._ended = self._ended, ended
            self.late.read(wait=self.settings.latency == 0, through=before)
            self._make_room()
        self.control(self.judge.begin_step, step)

    def _make_room(self) -> None:
        """Say how much of the device's memory the ring may keep alive; looked at again while the job's peak may grow."""
        self._steps += 1
        if self.settings.memory is None and self._steps <= 3 and self.late.device is not None:
            self.ring.room = room_on(self.late.device)
            self.late.room = max(self.ring.room // 4, 1)

    def finish(self) -> None:
        """Judge all that is still on a device."""
        with OwnCode(self.watch, "the last flags"):
            self.end_pass()
            self.late.end()
            self.late.read(wait=True)
            self.judge.end_model()

    def _found(self, strike: Strike) -> None:
        """Tell of an origin; one inside an optimizer's step only tells the line of that step's."""
        if self.judge.inside:
            self.judge.hint = self.judge.hint or (strike.origin.call, strike.seen.site)
        else:
            self._on_origin(strike)

    # Judging --------------------------------------------------------------------------------------------------------

    def is_late(self, tensor: Tensor) -> bool:
        """Tell whether a tensor's state is known only when flags have been read."""
        return self.waits or not tensor.is_cpu

    def parameter(self, tensor: Tensor) -> str:
        """Return the name of a parameter, or nothing where a tensor is none."""
        name = self.modules.parameter_name(tensor)
        return name or ("parameter" if isinstance(tensor, torch.nn.Parameter) else "")

    def submit(self, judge: Any, *arguments: Any, late: bool) -> None:
        """Judge now where all is at hand (`late` is False); else when the flags have come, after all that came before."""
        if not late:
            if len(self.late):
                self.finish()
            judge(*arguments)
            return
        self.late.log(judge, *arguments)
        self._since += 1
        latency = self.settings.latency
        if self.late.full or (latency is not None and self._since >= max(latency, 1)):
            self._since = 0
            self.late.end()
            self.late.read(wait=latency is not None)

    def control(self, change: Any, *arguments: Any) -> None:
        """Change what the judge knows, between the calls before and those after."""
        if self.late.in_use:
            self.late.log(change, *arguments, always=True)
        else:
            change(*arguments)

    def leaf(self, seen: Any, slot: str, incoming: list[tuple[Any, Look]], variable: Tensor) -> None:
        """A gradient goes to a parameter: it is looked at when the pass is over, with all others in one launch."""
        self.leaves[id(variable)] = (seen, slot, incoming, weakref.ref(variable))

    def end_pass(self) -> None:
        """Look at the parameters' gradients of the backward pass that is over."""
        if self.leaves:
            leaves, self.leaves = self.leaves, {}
            self.later.end_pass(list(leaves.values()))

    def write(self, strike: Strike | None) -> int:
        """Write the record; return how many of the origin's tensors had to be let go before."""
        return write(self, strike)


def room_on(device: torch.device, cuda: Any = torch.cuda) -> int:
    """Return the bytes that may be kept alive on a device: a twentieth, and half of what the job leaves at its peak."""
    if device.type != "cuda":
        return _ROOM
    free, total = cuda.mem_get_info(device)
    left = free + cuda.memory_reserved(device) - cuda.max_memory_allocated(device)
    return max(min(int(total) // 20, int(left) // 2), 0)
