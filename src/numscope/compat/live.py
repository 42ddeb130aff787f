"""Capture without a run directory: a listener gets each call with its tensors as soon as the call is complete.

The older systems write their files while the job runs, and stop it at the first overflow. So the facades listen to the
engine that also records runs: a forward call is reported when its outputs are there, the backward calls of one
`backward()` when that has ended, inner calls before the call around them, in the order of those systems' own hooks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from numscope.capture import ranks, session
from numscope.capture.recording.recorder import Recorder
from numscope.capture.recording.rows import CallRow, SlotRow
from numscope.capture.sites import Frame
from numscope.capture.torch.frontend import TorchFrontend
from numscope.capture.torch.identity.subclasses import to_numpy
from numscope.capture.torch.own_code import OwnComputation
from numscope.capture.torch.watch import Watch
from numscope.compat.measures import Array
from numscope.core.errors import CaptureError, SettingsError
from numscope.core.json_value import Json, holds_non_finite
from numscope.core.settings import CaptureSettings
from numscope.store.formats.step_calls import orders_by_end

HELD_BYTES = 256 << 20


@dataclass(frozen=True)
class LiveTensor:
    """A copy of a tensor as it was in the call, and the layout in memory of the tensor itself."""

    data: torch.Tensor
    dtype: str
    stride: tuple[int, ...]
    offset: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return tuple(self.data.shape)

    def numpy(self) -> Array:
        """Return the data, bit for bit; of a dtype of ml_dtypes where numpy has none."""
        return to_numpy(self.data)

    def is_finite(self) -> bool:
        """Tell whether all elements are finite."""
        kind = self.data.dtype
        if not (kind.is_floating_point or kind.is_complex):
            return True
        data = self.data.float() if kind.itemsize == 1 else self.data
        return bool(torch.isfinite(data).all())


@dataclass
class LiveCall:
    """One call with its tensors."""

    order: int
    name: str
    kind: str
    module: str
    module_class: str
    phase: str
    parent: int
    forward: int
    arguments: dict[str, Json]
    frames: list[Frame]  # outermost first
    recompute: bool
    slots: dict[str, LiveTensor] = field(default_factory=dict)

    def group(self, group: str) -> dict[str, LiveTensor]:
        """Return the tensors of one group of slots, by what follows the group's name."""
        parts = ((slot.partition("."), tensor) for slot, tensor in self.slots.items())
        tensors = {tail: tensor for (first, _, tail), tensor in parts if first == group}
        return dict(sorted(tensors.items(), key=lambda item: _by_number(item[0])))


def _by_number(tail: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in tail.split(".")]


class Listener(Protocol):
    """A facade that is told of each call."""

    def forward(self, call: LiveCall) -> None:
        """Take a forward call, which has its outputs."""

    def backward(self, calls: list[LiveCall]) -> None:
        """Take the calls of a `backward()` that has ended."""


class LiveRecorder(Recorder):
    """A recorder that passes the calls to a listener instead of writing them."""

    stores = False

    def __init__(self, listener: Listener) -> None:
        super().__init__(_no_writer, None, to_numpy)
        self._listener = listener
        self._open: dict[int, LiveCall] = {}
        self._complete: list[int] = []
        self._held: dict[int, LiveTensor] = {}
        self._held_before: dict[int, LiveTensor] = {}
        self._held_bytes = 0
        self._layouts: dict[int, tuple[tuple[int, ...], int]] = {}  # tensor → stride, offset
        self._task = -1  # torch's number of the backward whose end is waited for
        self.watch: Watch

    def call(self, row: CallRow) -> None:
        """Note a call."""
        text = self.strings
        self._open[row.order] = LiveCall(
            order=row.order,
            name=text[row.name],
            kind=text[row.kind],
            module=text[row.module],
            module_class=text[row.module_class],
            phase=text[row.phase],
            parent=row.parent,
            forward=row.forward,
            arguments=json.loads(text[row.arguments]) if row.arguments >= 0 else {},
            frames=self.sites.frames(row.stack) if row.stack >= 0 else [],
            recompute=bool(row.recompute),
        )

    def slot(self, row: SlotRow) -> None:
        """Put a tensor in its call's slot."""
        call = self._open.get(row.call)
        held = self._held.get(row.tensor) or self._held_before.get(row.tensor)
        if call is None or held is None:
            return
        name = self.strings[row.slot]
        if name.startswith("output.") and call.phase != "backward" and row.call not in self._complete:
            self._complete.append(row.call)
        call.slots[name] = held

    def tensor(self, tensor: torch.Tensor, dtype: int, shape: int, device: int, placement: int = -1) -> int:
        """Give a tensor a number; `keep` brings its data."""
        number = next(self.tensor_numbers)
        self._layouts[number] = (tuple(tensor.stride()), int(tensor.storage_offset()))
        return number

    def keep(self, number: int, data: torch.Tensor, size: int, sampled: bool = False) -> bool:
        """Hold a tensor's data."""
        stride, offset = self._layouts.get(number, ((), 0))
        self._held[number] = LiveTensor(data, str(data.dtype), stride, offset)
        self._held_bytes += size
        return True

    def is_full(self, times: int = 1) -> bool:
        """Report the calls that have just been completed; there is never anything to flush."""
        self._report()
        task = int(torch._C._current_graph_task_id())
        if task not in (-1, self._task):
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self.backward_ended)
        if self._held_bytes > HELD_BYTES:
            self._make_room()
        return False

    def _report(self) -> None:
        done, self._complete = self._complete, []
        for order in done:
            call = self._open.pop(order)
            if not call.recompute:
                self._listener.forward(call)

    def backward_ended(self) -> None:
        """Report the backward calls, inner ones first."""
        self._task = -1
        calls = {order: call for order, call in self._open.items() if call.phase == "backward"}
        for order in calls:
            del self._open[order]
        if calls:
            with OwnComputation(self.watch):  # the listener's own computation is not the job's
                parents: dict[int, int | None] = {order: call.parent for order, call in calls.items()}
                self._listener.backward([calls[order] for order in orders_by_end(parents)])

    def drain(self) -> None:
        """Report the calls that are left, and drop all tensors."""
        self._report()
        self.backward_ended()
        self._open.clear()
        self._held.clear()
        self._held_before.clear()
        self._layouts.clear()

    def _make_room(self) -> None:
        """Drop the older half of the held tensors; one that appears again is copied again."""
        self._held_before, self._held, self._held_bytes = self._held, {}, 0
        self._layouts.clear()
        self.watch.tensors.new_step()


def _no_writer() -> NoReturn:
    raise CaptureError("this capture writes no run")


class LiveSession:
    """The capture engine with a listener: `start` and `stop`, as often as wanted."""

    def __init__(
        self,
        models: Iterable[torch.nn.Module],
        listener: Listener,
        *,
        level: str = "api",
        backward: bool = True,
        parameters: bool = False,
        stacks: bool = True,
        on_error: str = "warn",
    ) -> None:
        listed = list(models)
        for model in listed:
            if not isinstance(model, torch.nn.Module):
                raise SettingsError(f"the model is a {type(model).__name__}: pass a torch.nn.Module")
        settings = CaptureSettings.of(
            level=level,
            keep="tensors",
            backward=backward,
            parameters=parameters,
            optimizer=False,
            stacks=stacks,
            on_error=on_error,
        )
        self._recorder = LiveRecorder(listener)
        named = {"" if len(listed) == 1 else str(index): model for index, model in enumerate(listed)}
        self._frontend = TorchFrontend(settings, named, _no_writer, recorder=self._recorder)
        self._recorder.watch = self._frontend.watch
        self._recorder.begin_step(0)
        self.running = False

    def start(self) -> None:
        """Begin to listen."""
        if self.running:
            return
        if session._active is not None:
            raise CaptureError("an ns.capture is active already: stop it before you use this facade")
        self.running = True
        self._frontend.start()

    def stop(self) -> None:
        """Undo everything and report the calls that are left."""
        if self.running:
            self.running = False
            self._frontend.stop()
            self._recorder.drain()
            self._frontend.new_step()

    def end(self) -> None:
        """Stop listening from inside a call; patches cannot be undone there, so the next `stop` does that."""
        self._frontend.watch.on = False

    def end_step(self) -> None:
        """Report the calls that are left, and number calls anew."""
        self._recorder.drain()
        self._frontend.new_step()
        self._recorder.begin_step(self._recorder.step + 1)


def flat_float32(array: Array) -> NDArray[np.float32]:
    """Return an array's elements as one row of float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        if array.dtype.kind == "c":
            array = np.abs(array)
        return np.ascontiguousarray(array).reshape(-1).astype(np.float32)


def is_overflow(call: LiveCall) -> bool:
    """Tell whether a call with finite inputs returned a non-finite output that none of its arguments asked for."""
    outputs = call.group("output")
    if all(tensor.is_finite() for tensor in outputs.values()):
        return False
    before = {**call.group("input"), **call.group("kwargs"), **call.group("parameters")}
    if not all(tensor.is_finite() for tensor in before.values()):
        return False  # inherited
    return not holds_non_finite(call.arguments)


def statistics(array: Array) -> tuple[float, float, float]:
    """Return (max, min, mean) over all elements in float64; NaN where there are none."""
    if not array.size:
        return float("nan"), float("nan"), float("nan")
    wide = np.abs(array) if array.dtype.kind == "c" else array
    with np.errstate(invalid="ignore", over="ignore"):
        wide = wide.astype(np.float64)
        return float(wide.max()), float(wide.min()), float(wide.mean())


def rank_and_world() -> tuple[int, int]:
    """Return this process's rank and the number of ranks."""
    return ranks.current()
