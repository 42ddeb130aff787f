"""The state that Paddle's functions, layers and gradients share: the open calls of each thread, and how a call is recorded."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import NamedTuple, Protocol, TypeVar

import paddle

from numscope.capture.arguments import describe, key_of, remember
from numscope.capture.paddle.tensors import Tensors
from numscope.capture.recording.interned import Series
from numscope.capture.recording.recorder import Recorder
from numscope.capture.recording.rows import CallRow, SlotRow
from numscope.capture.scope import Call, Scope, any_of
from numscope.core.settings import CaptureSettings
from numscope.fingerprint.columns import Unmeasured

Undo = Callable[[], None]
Values = Sequence[object] | dict[str, object]  # arguments or results, which may be nested
Argument = tuple[str, object]  # name or index, value
_Base = TypeVar("_Base")

_KINDS = ("module", "api", "optimizer", "data", "save")


class Place(NamedTuple):
    """The innermost layer around a call: its path and class, interned."""

    module: int
    module_class: int


class Slot(NamedTuple):
    """A tensor in a slot of a call."""

    name: int  # interned
    tensor: paddle.Tensor


class MeasuredSlot(NamedTuple):
    """A slot of a call, and the tensor's number."""

    slot: int
    number: int  # of the tensor; -1 where it was not measured
    note: int  # why not


class Backward(Protocol):
    """The backward call of an open call."""

    def begin(self) -> int:
        """Return its order, recording it where it is not yet."""


@dataclass(frozen=True)
class Open:
    """A call that has begun and not ended."""

    order: int
    place: Place
    path: str
    site: int
    op: str  # of a function; empty for a layer
    backward: Backward | None


class ThreadState(threading.local):
    """The open calls of this thread, and which code runs in it."""

    def __init__(self) -> None:
        self.stack: list[Open] = []
        self.busy = False  # our own code runs
        self.quiet = False  # an optimizer's step runs: it is one call
        self.backward = 0  # `backward()` calls that run: a forward call inside them is a recomputation
        self.number = -1


class Watch:
    """Records Paddle's calls into a recorder, while it is on."""

    def __init__(self, recorder: Recorder, settings: CaptureSettings) -> None:
        self.recorder = recorder
        self.settings = settings
        self.on = False
        self.forward_on = True
        self.results = 0  # functions that have made a tensor so far: tells whether one ran inside another
        self.thread = ThreadState()
        self.tensors = Tensors(
            recorder, settings.keep != "structure", settings.sample if settings.keep == "sample" else None
        )
        self._threads = 0
        self._warned: set[str] = set()
        self._series: dict[str, Series] = {}
        self._argument_ids: dict[Hashable, int] = {}
        self.scope = Scope(settings.scope, settings.exclude)
        self.before_call: Callable[[], None] | None = None  # work to do once, before the next call is recorded
        self.record_forward = settings.phase != "backward"
        self.record_backward = settings.backward and settings.phase != "forward"
        self._counts = [0, 0]  # slots of forward, of backward, against the caps
        self._caps = (settings.max_tensors, settings.max_gradients)
        self._data_wanted = any_of(settings.tensors)
        self._in_scope: dict[int, bool] = {}
        strings = recorder.strings
        no_text = strings.id("")
        self.no_place = Place(no_text, no_text)
        self._kinds = {kind: strings.id(kind) for kind in _KINDS}
        self._phases = {phase: strings.id(phase) for phase in ("forward", "backward", "optimizer", "input")}

    def series(self, head: str, template: str = "{head}.{n}.{phase}") -> Series:
        """Return the series of names under a head such as `Functional.linear`."""
        series = self._series.get(head)
        if series is None:
            series = self._series.setdefault(head, Series(self.recorder.strings, head, template))
        return series

    def slot_id(self, slot: str) -> int:
        """Return the interned slot name."""
        return self.recorder.strings.id(slot)

    def begins(self) -> bool:
        """Do the work that waits for the next call; tell whether that call, which begins now, is still watched."""
        if self.before_call is not None:
            work, self.before_call = self.before_call, None
            work()
        return self.on

    def call(
        self,
        order: int,
        name: int,
        kind: str,
        phase: str,
        place: Place,
        *,
        parent: int = -1,
        forward: int = -1,
        arguments: int = -1,
        site: int = -1,
        recompute: bool = False,
        error: int = -1,
    ) -> None:
        """Record a call; -1 stands for a text or call that there is none of."""
        row = CallRow(
            order,
            name,
            self._kinds[kind],
            place.module,
            place.module_class,
            self._phases[phase],
            parent,
            forward,
            arguments,
            stack=site,
            recompute=recompute,
            error=error,
            thread=self.thread_number(),
        )
        self.recorder.call(row)

    def in_scope(self, name: int, place: Place, kind: str, phase: str = "forward") -> bool:
        """Tell whether a call of this name, in this layer, is recorded."""
        if self.scope.everything:
            return True
        decision = None if self.scope.stateful else self._in_scope.get(name)
        if decision is None:
            text = self.recorder.strings
            call = Call(text[name], text[place.module], text[place.module_class], kind, phase)
            decision = self._in_scope[name] = self.scope(call)
        return decision

    def ended(self, name: int) -> None:
        """Tell the scope's ranges that a call has ended."""
        if self.scope.stateful:
            self.scope.ended(self.recorder.strings[name])

    def new_step(self) -> None:
        """Forget what belongs to the step that ended."""
        self.tensors.forget()
        self.scope.new_step()
        if self.settings.caps == "step":
            self._counts = [0, 0]

    def thread_number(self) -> int:
        """Return this thread's number: 0 for the first one seen."""
        if self.thread.number < 0:
            self.thread.number = self._threads
            self._threads += 1
        return self.thread.number

    def site(self, frame: FrameType | None) -> int:
        """Return the number of the stack above our own frames."""
        if not self.settings.stacks:
            return -1
        stack = self.thread.stack
        return self.recorder.sites.intern(frame, stack[-1].site if stack else -1)

    def flatten(self, group: str, values: Values, others: list[Argument]) -> list[Slot]:
        """Return the tensors among values with their slots; the other values are added to `others`."""
        slots: list[Slot] = []
        for key, value in _items(values):
            if isinstance(value, paddle.Tensor):
                slots.append(Slot(self.slot_id(f"{group}.{key}"), value))
            elif isinstance(value, (list, tuple, dict)) and holds_tensor(value):
                slots.extend(self._nested(f"{group}.{key}", value, 0))
            else:
                others.append((str(key), value))
        return slots

    def _nested(self, path: str, value: Values, depth: int) -> Iterator[Slot]:
        for key, item in _items(value):
            if isinstance(item, paddle.Tensor):
                yield Slot(self.slot_id(f"{path}.{key}"), item)
            elif isinstance(item, (list, tuple, dict)) and depth < 8:
                yield from self._nested(f"{path}.{key}", item, depth + 1)

    def outputs(self, value: object) -> list[Slot]:
        """Return the tensors of a result with their slots."""
        if isinstance(value, paddle.Tensor):
            return [Slot(self.slot_id("output.0"), value)]
        return self.flatten("output", value, []) if isinstance(value, (list, tuple, dict)) else []

    def arguments(self, positional: list[Argument], named: list[Argument]) -> int:
        """Return the interned JSON of a call's non-tensor arguments, or -1."""
        if not positional and not named:
            return -1
        try:
            key = (tuple((n, key_of(v)) for n, v in positional), tuple((n, key_of(v)) for n, v in named))
            number = self._argument_ids.get(key)
        except Exception:  # an argument may raise on anything that is asked of it
            return -1
        if number is None:
            shape = {
                **({"args": {n: describe(v) for n, v in positional}} if positional else {}),
                **({"kwargs": {n: describe(v) for n, v in named}} if named else {}),
            }
            number = self.recorder.strings.of_call(json.dumps(shape))
            remember(self._argument_ids, key, number)
        return number

    def measure(self, slots: list[Slot], name: int, backward: bool = False) -> list[MeasuredSlot]:
        """Return the rows of a call's slots; a tensor that cannot be measured has a note in place of its number."""
        rows = []
        for slot, tensor in slots:
            if not self._wants_slot(slot, backward):
                continue
            try:
                number = self.tensors.number(tensor, partial(self._wants_data, name, slot))
                rows.append(MeasuredSlot(slot, number, -1))
            except Unmeasured as why:
                self.recorder.skip(str(why))
                rows.append(MeasuredSlot(slot, -1, self.recorder.strings.id(str(why))))
        return rows

    def _wants_slot(self, slot: int, backward: bool) -> bool:
        """Tell whether a slot is recorded, and count it against its cap."""
        if self.settings.slots != "both":
            group = self.recorder.strings[slot].partition(".")[0]
            if self.settings.slots != ("output" if group in {"output", "parameters_grad"} else "input"):
                return False
        cap = self._caps[backward]
        if cap and self._counts[backward] >= cap:
            self.recorder.skip(f"over the cap of {cap} {'gradients' if backward else 'tensors'}")
            return False
        self._counts[backward] += 1
        return True

    def _wants_data(self, name: int, slot: int) -> bool:
        if self.settings.keep == "tensors":
            return True
        strings = self.recorder.strings
        return bool(self.settings.tensors) and self._data_wanted(f"{strings[name]}.{strings[slot]}")

    def slots(self, order: int, rows: list[MeasuredSlot]) -> None:
        """Record the slots of a call."""
        self.recorder.slots(SlotRow(order, slot, number, note) for slot, number, note in rows)

    def flush_if_full(self) -> None:
        """Hand the buffers over to the writer where they are full."""
        if self.recorder.is_full():
            self.recorder.flush()

    def fault(self, where: str, error: Exception) -> None:
        """Count a fault of our own; training goes on unless the user wants it raised."""
        if self.settings.on_error == "raise":
            raise error
        reason = f"{where}: {type(error).__name__}: {error}"
        self.recorder.skip(reason.splitlines()[0][:200], fault=True)
        if where not in self._warned:
            self._warned.add(where)
            warnings.warn(f"numscope could not record a call ({reason}); training goes on", stacklevel=3)


def subclasses(base: type[_Base]) -> Iterator[type[_Base]]:
    """Yield a class and all classes derived from it."""
    yield base
    for derived in base.__subclasses__():
        yield from subclasses(derived)


def _items(values: Values) -> Iterable[tuple[object, object]]:
    return values.items() if isinstance(values, dict) else enumerate(values)


def holds_tensor(value: Values, depth: int = 0) -> bool:
    """Tell whether there is a tensor in nested containers."""
    for _, item in _items(value):
        if isinstance(item, paddle.Tensor):
            return True
        if isinstance(item, (list, tuple, dict)) and depth < 8 and holds_tensor(item, depth + 1):
            return True
    return False
