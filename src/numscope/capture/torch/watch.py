"""The state that all of torch's interposition points share: what is open in which thread, and how a call is recorded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from numscope.capture.recording.interned import PASSING, Series
from numscope.capture.recording.recorder import UNWANTED, Recorder
from numscope.capture.recording.rows import SLOT_WIDTH, TENSOR_OF_SLOT, CallRow, SlotRow, add_slot, add_slots
from numscope.capture.scope import Call, Scope, any_of
from numscope.capture.torch.autograd.recompute import Executions
from numscope.capture.torch.identity.tensors import Tensors
from numscope.capture.torch.numerics import autocast_dtype
from numscope.capture.torch.own_code import OwnComputation
from numscope.capture.torch.slots import Slot, Values
from numscope.capture.torch.thread import Open, ThreadState
from numscope.core.settings import CaptureSettings
from numscope.fingerprint.columns import Unmeasured


class Watch(Values):
    """Records torch's calls into a recorder, while it is on."""

    # Python is quick at the methods of an object only if that has slots, or less than 30 attributes.
    __slots__ = (
        "__weakref__",
        "_ahead",
        "_before_call",
        "_caps",
        "_counts",
        "_data_wanted",
        "_in_scope",
        "_keep_all",
        "_keeps",
        "_restricted",
        "_samples",
        "_series",
        "_slot_wanted",
        "_threads",
        "_warned",
        "api_kind",
        "asks",
        "aten_kind",
        "backward_phase",
        "calm",
        "executions",
        "forward_on",
        "forward_phase",
        "intern",
        "keeps_some",
        "kinds",
        "module_kind",
        "no_text",
        "not_waited",
        "on",
        "outside",
        "phase_names",
        "phases",
        "record_backward",
        "record_forward",
        "recorder",
        "records_modules",
        "restless",
        "scope",
        "settings",
        "stacks",
        "tensors",
        "thread",
        "uninitialized",
        "unversioned_writes",
    )

    def __init__(self, recorder: Recorder, settings: CaptureSettings) -> None:
        super().__init__(recorder.strings)
        self.recorder = recorder
        self.settings = settings
        self.on = False  # calls are recorded
        self.forward_on = True  # … forward calls too
        self.thread = ThreadState()
        self.tensors = Tensors(recorder)
        self.executions = Executions()
        self._threads = 0
        self._warned: set[str] = set()
        self._series: dict[str, Series] = {}
        self.scope = Scope(settings.scope, settings.exclude)
        self.before_call = None
        self.stacks = settings.stacks
        self.intern = recorder.sites.intern
        self.record_forward = settings.phase != "backward"
        self.record_backward = settings.backward and settings.phase != "forward"
        self._counts = [0, 0]  # slots of forward, of backward, against the caps
        self._ahead: dict[int, int] = {}  # id of a model → the step whose parameters are measured
        self.unversioned_writes: Any = None  # at level module: what sees writes that raise no version
        self.records_modules = settings.level != "api"  # else they only say where calls are
        self._caps = (settings.max_tensors, settings.max_gradients)
        self._restricted = settings.slots != "both" or any(self._caps)
        self._slot_wanted: dict[int, bool] = {}
        self._data_wanted = any_of(settings.tensors)
        self._keep_all = settings.keep == "tensors"
        self._samples = settings.keep == "sample"
        self.keeps_some = self._keep_all or self._samples or bool(settings.tensors)
        # There is more to do with a slot than to measure its tensor and write it down.
        self.restless = self._restricted or self.keeps_some or not recorder.direct
        # Most captures: forward calls are recorded as they are found, and nothing else is to be done about them.
        self.calm = self.record_forward and not self.restless and not self.scope.stateful and not settings.verify
        self._in_scope: dict[int, bool] = {}
        self._keeps: dict[tuple[int, int], bool] = {}
        strings = recorder.strings
        self.no_text = strings.id("")
        self.outside = Open(-1, self.no_text, self.no_text, "", -1, "", None)  # what is in no call
        self.uninitialized = strings.id("uninitialised memory")
        self.not_waited = strings.id("not waited for")
        self.kinds = {kind: strings.id(kind) for kind in _KINDS}
        self.api_kind = self.kinds["api"]
        self.aten_kind = self.kinds["aten"]
        self.module_kind = self.kinds["module"]
        self.phases = {phase: strings.id(phase) for phase in ("forward", "backward", "optimizer", "input")}
        self.phase_names = {number: phase for phase, number in self.phases.items()}
        self.forward_phase = self.phases["forward"]
        self.backward_phase = self.phases["backward"]

    # Names --------------------------------------------------------------------------------------------------------

    def series(self, key: str, template: str | None = None, head: str = "") -> Series:
        """Return the series of names under a head such as `Functional.linear`; the key is the head unless given."""
        found = self._series.get(key)
        if found is None:
            new = Series(self.recorder.strings, head or key, template or "{head}.{n}.{phase}")
            found = self._series.setdefault(key, new)
        return found

    def in_scope(self, name: int, parent: Open | None, kind: str, phase: str = "forward") -> bool:
        """Tell whether a call of this name is recorded; `parent` has the module it runs in, or is it."""
        self.do_first()
        if self.scope.everything:
            return True
        found = None if self.scope.stateful else self._in_scope.get(name)
        if found is None:
            strings = self.recorder.strings
            module, module_class = (parent.module, parent.module_class) if parent else (self.no_text, self.no_text)
            found = self.scope(Call(strings[name], strings[module], strings[module_class], kind, phase))
            if name < PASSING:
                self._in_scope[name] = found
        return found

    def do_first(self) -> None:
        """Do what waits for the next call, before that call has a number: a step that is over ends here."""
        if self._before_call is not None:
            work, self.before_call = self._before_call, None
            work()

    def ended(self, name: int) -> None:
        """Tell the scope's ranges that a call has ended."""
        if self.scope.stateful:
            self.scope.ended(self.recorder.strings[name])

    @property
    def before_call(self) -> Callable[[], None] | None:
        """Work to do once, before the next call is recorded."""
        return self._before_call

    @before_call.setter
    def before_call(self, work: Callable[[], None] | None) -> None:
        self._before_call = work
        # Whether `in_scope` must be asked: not every call is wanted, or something is to be done before the next.
        self.asks = work is not None or not self.scope.everything

    def thread_number(self) -> int:
        """Return this thread's number: 0 for the first one seen."""
        if self.thread.here.number < 0:
            self.thread.here.number = self._threads
            self._threads += 1
        return self.thread.here.number

    def site(self, frame: FrameType | None) -> int:
        """Return the number of the stack above our own frames."""
        return self.site_in(self.thread.here.stack, frame)

    def site_in(self, stack: list[Open], frame: FrameType | None) -> int:
        """Return the same, inside these open calls."""
        if not self.stacks:
            return -1
        return self.intern(frame, stack[-1].site if stack else -1)

    # Recording ----------------------------------------------------------------------------------------------------

    def blank(self, order: int, slots: list[Slot], note: int = -1) -> None:
        """Record results whose memory is not written yet: there is nothing to measure."""
        for _, tensor in slots:
            self.tensors.mark_uninitialized(tensor)
        self.empty(order, slots, note)

    def empty(self, order: int, slots: list[Slot], note: int = -1) -> None:
        """Record slots whose tensors hold nothing yet."""
        note = note if note >= 0 else self.uninitialized
        self.add([number for slot, _ in slots for number in SlotRow(order, slot, -1, note)])

    def rows(
        self,
        order: int,
        slots: list[Slot],
        overwritten: bool = False,
        backward: bool = False,
        base: torch.Tensor | None = None,
    ) -> list[int]:
        """Measure the tensors of a call; return a `SlotRow` of each, one after the other.

        A tensor that can't be measured has a note in its place. `overwritten`: the call writes to its first tensor; if
        that holds nothing yet, nothing is measured. `base`: what they are new views of, see `Tensors.look_up`.
        """
        rows: list[int] = []
        if len(slots) > LIST:
            with self.recorder.together():
                if base is None and not (self._restricted or (overwritten and self.tensors.uninitialized)):
                    names, many = zip(*slots)
                    numbers = self.tensors.numbers(many, self.thread.here.known_tensors)
                    add_slots(rows, order, names, numbers)
                    slots, overwritten = slots[len(numbers) :], False
                self._add_rows(rows, order, slots, overwritten, backward, base)
            return rows
        self._add_rows(rows, order, slots, overwritten, backward, base)
        return rows

    def unmeasured(self, why: Unmeasured) -> int:
        """Count a tensor that can't be measured; return the note that stands in its place."""
        self.recorder.skip(str(why))
        return self.recorder.strings.id(str(why))

    def _add_rows(
        self,
        rows: list[int],
        order: int,
        slots: list[Slot],
        overwritten: bool,
        backward: bool,
        base: torch.Tensor | None,
    ) -> None:
        for slot, tensor in slots:
            if self._restricted and not self._wants_slot(slot, backward):
                add_slot(rows, order, slot, UNWANTED)
                continue
            if overwritten and self.tensors.is_uninitialized(tensor):
                add_slot(rows, order, slot, -1, self.uninitialized)
                continue
            overwritten = False
            try:
                number = self.tensors.number(tensor) if base is None else self.tensors.look_up(tensor, base)
                add_slot(rows, order, slot, number)
            except Unmeasured as why:
                add_slot(rows, order, slot, -1, self.unmeasured(why))

    def measure_ahead(self, model: torch.nn.Module) -> None:
        """Measure a model's parameters together, once a step, before its modules ask for them one by one."""
        step = self.recorder.step
        if self._restricted or self._ahead.get(id(model)) == step:
            return
        self._ahead[id(model)] = step
        first = next(model.parameters(), None)
        if first is not None and first.is_cuda:  # elsewhere it gains nothing
            with self.recorder.together():
                self.rows(0, [Slot(0, parameter) for parameter in model.parameters()])

    def call_row(
        self,
        order: int,
        name: int,
        kind: int,
        module: int,
        module_class: int,
        phase: int,
        *,
        parent: int = -1,
        forward: int = -1,
        arguments: int = -1,
        stack: int = -1,
        recompute: bool = False,
    ) -> CallRow:
        """Return the row of a call that begins now, in this thread."""
        thread = self.thread.here.number
        autocast = self.autocast() if kind != self.aten_kind and _autocasts() else -1
        return _call_row(  # the class itself takes four times as long
            CallRow,
            (
                order,
                name,
                kind,
                module,
                module_class,
                phase,
                parent,
                forward,
                arguments,
                stack,
                recompute,
                -1,  # no error
                thread if thread >= 0 else self.thread_number(),
                autocast,
            ),
        )

    def autocast(self) -> int:
        """Return the interned name of the dtype that autocast casts to in this thread."""
        return self.recorder.strings.id(autocast_dtype())

    def add(self, rows: list[int]) -> None:
        """Record rows that `rows` has returned; one that is not wanted is left out."""
        recorder = self.recorder
        if recorder.direct and not self._restricted:
            recorder.slot_rows.extend(rows)
        else:
            columns = iter(rows)
            recorder.slots(map(SlotRow, *[columns] * SLOT_WIDTH))

    def record(
        self, order: int, slots: list[Slot], name: int, backward: bool = False, base: torch.Tensor | None = None
    ) -> list[int]:
        """Record the tensors of a call of this name, and keep the data of those that are wanted; return their rows.

        `base`: what they are new views of, see `Tensors.look_up`.
        """
        rows = self.rows(order, slots, False, backward, base)
        if self.keeps_some:
            self.keep(slots, rows, name)
        self.add(rows)
        return rows

    def _wants_slot(self, slot: int, backward: bool) -> bool:
        wanted = self._slot_wanted.get(slot)
        if wanted is None:
            group = self.recorder.strings[slot].partition(".")[0]
            side = "output" if group in {"output", "parameters_grad"} else "input"
            wanted = self._slot_wanted[slot] = self.settings.slots in ("both", side)
        if not wanted:
            return False
        cap = self._caps[backward]
        if cap and self._counts[backward] >= cap:
            self.recorder.skip(f"over the cap of {cap} {'gradients' if backward else 'tensors'}")
            return False
        self._counts[backward] += 1
        return True

    def keep(self, slots: list[Slot], rows: list[int], name: int) -> None:
        """Keep the data of those tensors of a call that are wanted."""
        with OwnComputation(self):
            for place, (slot, tensor) in zip(range(TENSOR_OF_SLOT, len(rows), SLOT_WIDTH), slots):
                if (number := rows[place]) < 0:
                    continue
                if self._wants_data(name, slot):
                    rows[place] = self.tensors.keep(number, tensor)
                elif self._samples:
                    self.tensors.keep_sample(number, tensor, self.settings.sample)

    def _wants_data(self, name: int, slot: int) -> bool:
        if self._keep_all:
            return True
        key = (name, slot)
        found = self._keeps.get(key)
        if found is None:
            strings = self.recorder.strings
            found = self._data_wanted(f"{strings[name]}.{strings[slot]}")
            if name < PASSING:
                self._keeps[key] = found
        return found

    def show(
        self,
        order: int,
        slot: int,
        tensor: torch.Tensor,
        name: int,
        backward: bool = True,
        base: torch.Tensor | None = None,
    ) -> None:
        """Record one tensor in its slot of a call: a gradient, unless told otherwise; for `base` see `record`."""
        if self.restless:
            self.record(order, [Slot(slot, tensor)], name, backward, base)
            return
        number = note = -1
        try:
            number = self.tensors.number(tensor) if base is None else self.tensors.look_up(tensor, base)
        except Unmeasured as why:
            note = self.unmeasured(why)
        add_slot(self.recorder.slot_rows, order, slot, number, note)

    def flush_if_full(self) -> None:
        """Hand over to the writer where the buffers are full.

        In an optimizer's step they may grow: what it leaves is known to the next step if its end is in the same batch.
        """
        if self.recorder.is_full(1 if self.thread.here.optimizer_step is None else _STEP):
            self.recorder.flush()
            self.tensors.forget_dead()
            self.executions.pack()

    def fault(self, where: str, error: Exception) -> None:
        """Count a fault of our own; training goes on unless the user wants it raised."""
        if self.settings.on_error == "raise":
            raise error
        reason = f"{where}: {type(error).__name__}: {error}"
        self.recorder.skip(reason.splitlines()[0][:200], fault=True)
        if where not in self._warned:
            self._warned.add(where)
            warnings.warn(f"numscope could not record a call ({reason}); training goes on", stacklevel=3)

    def new_step(self) -> None:
        """Forget the tensors of the step that ended."""
        self.tensors.new_step()
        self.executions.forget()
        self.scope.new_step()
        if self.settings.caps == "step":
            self._counts = [0, 0]


_call_row: Callable[[type[CallRow], tuple[int, ...]], CallRow] = tuple.__new__
_autocasts: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", torch.is_autocast_enabled)
LIST = 16  # tensors: a call that has more has lists of them, as a fused optimizer's, to be measured with few launches
_STEP = 16  # times as many slots may wait in an optimizer's step
_KINDS = ("module", "api", "aten", "collective", "optimizer", "parameter", "data", "save")
