"""The state that all parts of the guard share. A call is judged at once, or when the flags of a device have come."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import NamedTuple, ParamSpec

import torch

from numscope.capture.recording.recorder import Recorder
from numscope.capture.torch.device_to_host import for_the_writer
from numscope.capture.torch.guard.calls import LiveCall
from numscope.capture.torch.guard.device_log import DeviceLog, Window
from numscope.capture.torch.guard.record import DeviceEntry, LookSlot, Ring, write_record
from numscope.capture.torch.guard.tracking import LiveOrigin, LiveTracking
from numscope.capture.torch.own_code import OwnCode, OwnComputation
from numscope.capture.torch.watch import Watch
from numscope.core.errors import InexactError, NonFiniteError
from numscope.core.settings import CaptureSettings, GuardSettings
from numscope.store.writer import RunWriter

Tensor = torch.Tensor
P = ParamSpec("P")
ROOM = 256 << 20  # bytes that the ring keeps alive where nothing is said
_FINDINGS = (NonFiniteError, InexactError, Warning)  # a finding is a Warning where the user has made errors of warnings


class GuardWatch(Watch):
    """Counts faults of the guard's own code, but raises its findings."""

    __slots__ = ()

    def fault(self, where: str, error: Exception) -> None:
        """Raise a finding; count anything else."""
        if isinstance(error, _FINDINGS):
            raise error
        super().fault(where, error)


class _Leaf(NamedTuple):
    """A parameter that a backward pass gives a gradient, and the call that gives it."""

    call: LiveCall
    slot: str
    incoming: list[LookSlot]
    variable: weakref.ref[Tensor]


class GuardedJob:
    """The state of the guard: calls and their tensors, and the log of what is judged later."""

    def __init__(
        self,
        settings: GuardSettings,
        models: dict[str, torch.nn.Module],
        found: Callable[[LiveOrigin], None],
        open_writer: Callable[[], RunWriter],
        step_skipped: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.models = models
        self.step_skipped = step_skipped
        self._open_writer = open_writer
        # Names and stacks alone: a record has a recorder of its own.
        self.recorder = Recorder(open_writer, None, for_the_writer)
        self.watch = GuardWatch(self.recorder, CaptureSettings(level=settings.level))
        self.late = DeviceLog(settings.deferred)
        self.tracking = LiveTracking(
            self.recorder.strings,
            self.recorder.sites,
            found,
            settings.allow,
            settings.level == "module",
            self.late.give_reference,
        )
        self.tracker = self.tracking.tracker
        self.marks = self.tracking.marks
        self.late.wants_all = lambda: bool(self.tracker.doubts)
        self.ring = Ring(settings.calls, ROOM if settings.memory is None else settings.memory)
        self.name_parameter: Callable[[Tensor], str | None] = lambda tensor: None
        self._leaves: dict[int, _Leaf] = {}
        self._since = 0  # calls on a device since the flags were last read
        self._ended: Window | None = None  # the last window of the step before

    # Tensors --------------------------------------------------------------------------------------------------------

    def is_late(self, tensor: Tensor) -> bool:
        """Tell whether a tensor's counts are known only when flags have been read."""
        return self.settings.deferred or not tensor.is_cpu

    def parameter(self, tensor: Tensor) -> str:
        """Return the name of a parameter, or nothing where a tensor is none."""
        return self.name_parameter(tensor) or ("parameter" if isinstance(tensor, torch.nn.Parameter) else "")

    # Judging --------------------------------------------------------------------------------------------------------

    def judge(self, event: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Give the tracker an event of which all is at hand, after all that came before."""
        if len(self.late):
            self.finish()
        event(*args, **kwargs)

    def judge_later(self, event: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Give the tracker an event when its flags have come, after all that came before."""
        self.late.log(event, *args, **kwargs)
        self._since += 1
        latency = self.settings.latency
        if self.late.full or (latency is not None and self._since >= max(latency, 1)):
            self._since = 0
            self.late.end()
            self.late.read(wait=latency is not None)

    def control(self, change: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Change what the tracker knows, between the calls before and those after."""
        if self.late.in_use:
            self.late.log_always(change, *args, **kwargs)
        else:
            change(*args, **kwargs)

    def log_forward(self, entry: DeviceEntry) -> None:
        """Add a forward call to the ring and to the log."""
        self.ring.add(entry)
        self.judge_later(self._forward, entry)

    def log_backward(self, entry: DeviceEntry) -> None:
        """Add gradients to the ring and to the log."""
        self.ring.add(entry)
        self.judge_later(self._backward, entry)

    def log_data(self, entry: DeviceEntry) -> None:
        """Add data that enters the model to the ring and to the log."""
        self.ring.add(entry)
        self.judge_later(lambda: self.tracker.data(entry.call, entry.tensors("output")))

    def _forward(self, entry: DeviceEntry) -> None:
        self.tracker.forward(entry.call, entry.tensors("input"), entry.tensors("output"), entry.constants)

    def _backward(self, entry: DeviceEntry, added_up: bool = False) -> None:
        incoming, outgoing = entry.tensors("input"), entry.tensors("output")
        self.tracker.backward(entry.call, incoming, outgoing, added_up=added_up)

    # Passes and steps -----------------------------------------------------------------------------------------------

    def gradient_to_come(self, call: LiveCall, slot: str, incoming: list[LookSlot], variable: Tensor) -> None:
        """Note a parameter's gradient: when the pass is over, all of them are looked at in one launch."""
        self._leaves[id(variable)] = _Leaf(call, slot, incoming, weakref.ref(variable))

    @property
    def has_gradients_to_come(self) -> bool:
        """Tell whether a backward pass has given parameters gradients that were not looked at."""
        return bool(self._leaves)

    def end_pass(self) -> None:
        """Look at the parameters' gradients of the backward pass that is over, in one launch."""
        if not self._leaves:
            return
        leaves, self._leaves = self._leaves, {}
        with OwnComputation(self.watch):
            ready: list[tuple[_Leaf, Tensor]] = []
            for leaf in leaves.values():
                variable = leaf.variable()
                if variable is not None and variable.grad is not None:
                    ready.append((leaf, variable.grad))
            looks = self.late.all([(gradient, "") for _, gradient in ready])
            for (leaf, gradient), look in zip(ready, looks):
                look.tensor = weakref.ref(gradient)  # it is the optimizer's
                entry = DeviceEntry(leaf.call, "backward", leaf.incoming, [(leaf.slot, look)], 0, self.late.window)
                self.judge_later(self._backward, entry, added_up=True)

    def begin_step(self, step: int) -> None:
        """Number calls anew and send the flags of the step that ended to the host; those of the one before are read."""
        self.recorder.begin_step(step)
        self.ring.step = step
        self.watch.executions.forget()
        self.marks.forget()
        with OwnCode(self.watch, "the end of a step"):
            self.end_pass()
            if self.late.in_use:
                ended = self.late.end(step=True)
                self._since = 0
                before, self._ended = self._ended, ended
                self.late.read(wait=self.settings.latency == 0, through=before)
            self.control(self.tracker.begin_step, step)

    def finish(self) -> None:
        """Judge all that is still on a device."""
        with OwnCode(self.watch, "the last flags"):
            self.end_pass()
            self.late.end()
            self.late.read(wait=True)
            self.tracker.end_model()

    def write_record(self, origin: LiveOrigin | None) -> int:
        """Write the record; return how many of the origin's tensors had to be let go before."""
        return write_record(self.ring, self.settings.calls, self._open_writer, self.watch, origin)
