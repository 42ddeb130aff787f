"""The guard's record: a ring of the last calls, and the ordinary run that is written from it.

Calls are written with fingerprints, the tensors of the origin in full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import torch

from numscope.capture.recording.recorder import Recorder
from numscope.capture.recording.rows import CallRow, SlotRow, tensors_of
from numscope.capture.torch.device_to_host import for_the_writer
from numscope.capture.torch.guard.calls import HeldTensor, LiveCall, resolve
from numscope.capture.torch.guard.device_log import Look, Window
from numscope.capture.torch.guard.tracking import LiveOrigin, LiveTensor
from numscope.capture.torch.own_code import OwnComputation
from numscope.capture.torch.slots import Slot
from numscope.capture.torch.watch import Watch
from numscope.core.settings import CaptureSettings
from numscope.fingerprint.torch_form import TorchBatch
from numscope.store.writer import RunWriter

Tensor = torch.Tensor
SlotName = int | str  # a position among a call's inputs or outputs, or a slot's whole name
HeldSlot = tuple[SlotName, HeldTensor, int | None]  # with the version that the tensor had; None: it is as it was
LookSlot = tuple[SlotName, Look]

# Why a tensor is not in the record; the flags of a device may come after it had to be let go.
_GONE = "gone before it was recorded"
_LET_GO = "let go before the device's flags came: a greater memory=, or latency=1, keeps it"


class RingEntry:
    """A call in the ring, with the tensors that it keeps alive."""

    __slots__ = ("call", "inputs", "late", "outputs", "phase", "size", "step")

    def __init__(
        self,
        call: LiveCall,
        phase: str,
        inputs: list[HeldSlot],
        outputs: list[HeldSlot],
        size: int,
        late: bool = False,
    ) -> None:
        self.call = call
        self.phase = phase
        self.inputs = inputs
        self.outputs = outputs
        self.size = size  # bytes that it keeps alive
        self.late = late  # it is judged when a device's flags have come
        self.step = 0  # set by the ring

    @property
    def judged(self) -> bool:
        """Tell whether it has been judged."""
        return True

    def held(self, group: str) -> Iterator[tuple[str, Tensor | None, int | None]]:
        """Return its inputs or outputs with the versions that they had; None for a tensor that is no longer held."""
        for slot, tensor, version in self.inputs if group == "input" else self.outputs:
            yield slot_text(group, slot), resolve(tensor), version

    def let_go(self) -> None:
        """Keep nothing alive any more."""
        self.inputs, self.outputs = [], []
        self.size = 0


class DeviceEntry(RingEntry):
    """A call on a device, with the looks at its tensors: they hold the tensors."""

    __slots__ = ("constants", "looks_in", "looks_out", "window")

    def __init__(
        self,
        call: LiveCall,
        phase: str,
        inputs: Sequence[LookSlot],
        outputs: Sequence[LookSlot],
        size: int,
        window: Window,
        constants: Sequence[float] = (),
    ) -> None:
        super().__init__(call, phase, [], [], size, late=True)
        self.looks_in = inputs
        self.looks_out = outputs
        self.window = window
        self.constants = constants  # the numbers among the call's arguments

    @property
    def judged(self) -> bool:
        """Tell whether its flags have come."""
        return self.window.read

    def tensors(self, group: str) -> list[LiveTensor]:
        """Return its inputs or outputs to be judged."""
        return [
            LiveTensor(slot_text(group, slot), look.key, None, look, look.parameter, look.tensor)
            for slot, look in (self.looks_in if group == "input" else self.looks_out)
        ]

    def held(self, group: str) -> Iterator[tuple[str, Tensor | None, int | None]]:
        """Return its inputs or outputs with the versions that they had; None for a tensor that is no longer held."""
        for slot, look in self.looks_in if group == "input" else self.looks_out:
            yield slot_text(group, slot), resolve(look.tensor), look.version

    def let_go(self) -> None:
        """Keep nothing alive any more, parameters aside."""
        for _, look in [*self.looks_in, *self.looks_out]:
            if not look.parameter:
                look.tensor = None
        self.size = 0


class Ring:
    """The last calls, and all that are not judged yet; what they keep alive is bounded in bytes."""

    def __init__(self, calls: int, size: int) -> None:
        self._entries: deque[RingEntry] = deque()
        self._holding: deque[RingEntry] = deque()
        self._calls = calls
        self.room = size
        self.step = 0  # of the calls that are added
        self._held = 0

    def add(self, entry: RingEntry) -> None:
        """Add a call; the oldest make room."""
        entries, holding = self._entries, self._holding
        entry.step = self.step
        entries.append(entry)
        if entry.size:
            holding.append(entry)
            self._held += entry.size
            while self._held > self.room and (len(holding) > 1 or entry.late):
                oldest = holding.popleft()
                self._held -= oldest.size
                if oldest is entries[0] and oldest.judged:
                    entries.popleft()
                oldest.let_go()
        while len(entries) > self._calls and entries[0].judged:
            oldest = entries.popleft()
            if oldest.size:
                holding.popleft()
                self._held -= oldest.size
                oldest.let_go()

    def grow(self, entry: RingEntry, size: int) -> bool:
        """Let a call of the ring keep more alive; tell whether it is still there and may."""
        if entry.size:
            entry.size += size
            self._held += size
        return entry.size > 0

    def last(self) -> RingEntry | None:
        """Return the call that was added last."""
        return self._entries[-1] if self._entries else None

    def __iter__(self) -> Iterator[RingEntry]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)


def slot_text(group: str, slot: SlotName) -> str:
    """Return a slot's whole name."""
    return slot if isinstance(slot, str) else f"{group}.{slot}"


def write_record(
    ring: Ring, calls: int, open_writer: Callable[[], RunWriter], job: Watch, origin: LiveOrigin | None
) -> int:
    """Write the last `calls` of the ring, and the tensors of the origin, through a recorder of the record's own.

    Returns how many of the origin's tensors had to be let go before they could be written.
    """
    known = job.recorder
    recorder = Recorder(open_writer, TorchBatch(), for_the_writer, known.strings, known.sites)
    watch = Watch(recorder, CaptureSettings())
    entries = _last(ring, calls) if origin is None else _up_to(ring, calls, origin)
    missing = 0
    with OwnComputation(job):
        for step, group in groupby(entries, key=lambda entry: entry.step):
            recorder.begin_step(step)
            for entry in group:
                # Of an origin in backward the forward call's tensors are as telling as its gradients.
                missing = _write_call(watch, entry, keep=origin is not None and entry.call is origin.call)
            recorder.end_step()
            watch.new_step()
        recorder.close()
    return missing if origin is not None else 0


def _last(ring: Ring, calls: int) -> list[RingEntry]:
    return list(ring)[-calls:]


def _up_to(ring: Ring, calls: int, origin: LiveOrigin) -> list[RingEntry]:
    """Return the calls before an origin, and the origin with the tensors that are at hand."""
    entries = list(ring)
    places = [at for at, entry in enumerate(entries) if entry.call is origin.call and entry.phase == origin.phase]
    before = sum(entry.step <= origin.step for entry in entries)
    entries = entries[: places[0] if places else before]
    inputs, outputs = ([_held(tensor) for tensor in side] for side in (origin.inputs, origin.outputs))
    late = any(tensor.look is not None and tensor.look.window is not None for tensor in origin.outputs)
    last = RingEntry(origin.call, origin.phase, inputs, outputs, 0, late)
    last.step = origin.step
    return [*entries[max(len(entries) - calls + 1, 0) :], last]


def _held(tensor: LiveTensor) -> HeldSlot:
    return tensor.slot, tensor.tensor, tensor.look.version if tensor.look is not None else tensor.version


def _write_call(watch: Watch, entry: RingEntry, keep: bool) -> int:
    """Record a call of the ring; return how many of its tensors were let go."""
    recorder = watch.recorder
    call = entry.call
    parent = call.parent if call.parent is not None else watch.outside
    order = recorder.order()
    phase = "input" if call.kind == "data" and entry.phase != "backward" else entry.phase
    name = call.name(phase if phase in ("backward", "input") else "forward")
    row = CallRow(
        order,
        name,
        watch.kinds[call.kind],
        parent.module,
        parent.module_class,
        watch.phases["optimizer" if call.kind == "optimizer" else phase],
        stack=call.site,
    )
    recorder.call(row)
    missing = 0
    for group in ("input", "output"):
        for slot, tensor, version in entry.held(group):
            _write_slot(watch, order, slot, tensor, version, keep, _LET_GO if entry.late else _GONE)
            missing += tensor is None and entry.late
    return missing


def _write_slot(
    watch: Watch, order: int, name: str, tensor: Tensor | None, version: int | None, keep: bool, gone: str
) -> None:
    recorder = watch.recorder
    slot = recorder.strings.id(name)
    why = gone if tensor is None else ""
    if tensor is not None and version not in (None, -1) and tensor._version != version:
        why = "overwritten before it was recorded"
    if tensor is None or why:
        recorder.skip(why)
        recorder.slot(SlotRow(order, slot, -1, recorder.strings.id(why)))
        return
    rows = watch.rows(order, [Slot(slot, tensor)])
    watch.add(rows)
    for number in tensors_of(rows):
        if keep and number >= 0:
            watch.tensors.keep(number, tensor)
