"""The aten level: a TorchDispatchMode that records every dispatched operator, in forward and in backward.

An operator that runs in backward is linked to the forward operator whose autograd node is running: a node has the
sequence number that was the newest when its operator was dispatched. What an operator writes to is read from its schema:
torch raises the versions of those tensors only when the mode has returned.
"""

from __future__ import annotations

import marshal
import sys
import threading
from itertools import compress
from operator import itemgetter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from numscope.capture.torch.identity.storages import version_of
from numscope.capture.torch.identity.subclasses import PLAIN
from numscope.capture.torch.identity.uninitialized import record_results
from numscope.capture.torch.levels.aten_rows import named_rows, nested_rows, result_rows
from numscope.capture.torch.levels.operator_schema import ABSENT, Names, Operator
from numscope.capture.torch.levels.optimizer_operators import OptimizerStep
from numscope.capture.torch.own_code import OwnCode
from numscope.capture.torch.slots import NUMBERS, SIMPLE, Slot
from numscope.capture.torch.thread import Open, State
from numscope.capture.torch.watch import Watch
from numscope.fingerprint.columns import Unmeasured

_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_functions = torch._C._len_torch_function_stack
_grad_is_on = torch.is_grad_enabled
_sequence = torch._C._autograd._get_sequence_nr
_Tensor = torch.Tensor
_bytes_of = marshal.dumps
THREAD = 1 << 48  # how far apart the sequence numbers of two threads are
_ENGINE = ("torch.autograd", "torch.autograd.graph")  # whose code calls the engine
_tensor_of = itemgetter(1)  # a slot
Row = tuple[int, int, list[Slot], list[int], list[int | None] | None]  # order, name, inputs, their rows and versions


class AtenMode(TorchDispatchMode):
    """Sees each operator while it is on the mode stack."""

    __slots__ = ("_epoch", "_kind", "_lock", "_names", "_operators", "_outside", "_owners", "_watch")

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch
        self._kind = watch.kinds["aten"]
        self._operators: dict[int, Operator] = {}  # by the function's id: its own hash is a call of Python's
        self._owners: dict[int, int] = {}  # a thread's sequence number → order of the forward operator
        self._names: dict[str, Names] = {}
        self._epoch = -1
        self._lock = threading.Lock()
        self._outside = Open(-1, watch.no_text, watch.no_text, "", -1, "", None)  # what is in no call

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the mode is off wherever dynamo is on, see `compiled.py`: nothing needs to be switched at each operator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        watch = self._watch
        state = watch.thread.here
        try:
            operator = self._operators[id(func)]
        except KeyError:
            operator = self._know(func)
        tensors = watch.tensors
        if (
            not operator.ordinary or state.busy or not watch.on or types or watch.asks or tensors.uninitialized
            or state.optimizer_step is not None or not watch.forward_on or _functions()
            or ((in_engine := _task() != -1) and _grad_is_on())
        ):  # fmt: skip
            if operator.silent or state.busy or not watch.on:
                return func(*args, **kwargs) if kwargs else func(*args)
            return self._any(operator, func, state, args, kwargs or {}, sys._getframe().f_back)

        # Most of them: nothing is to be done but to write down what goes in and what comes out. It is done here, at once. No
        # function mode is on, and plain tensors need no guard against others' functions: what is none is looked at inside it.
        begun = False
        recorder = watch.recorder
        with OwnCode(watch, operator.head):
            if self._epoch != recorder.epoch:
                self._begin_step(recorder.epoch)
            thread = state.number
            if thread < 0:
                thread = watch.thread_number()
            stack = state.stack
            parent = stack[-1] if stack else self._outside
            if in_engine:
                name = next(operator.backward.coming, -1)
                if name < 0:
                    name = operator.backward.next()
                order = next(recorder.orders)
                phase, site = watch.backward_phase, -1
                if thread or (node := _node()) is None:
                    forward = self._link(order, thread)
                else:  # as there
                    forward = self._owners.get(node._sequence_nr(), -1)
            else:
                name = next(operator.forward.coming, -1)
                if name < 0:
                    name = operator.forward.next()
                order = next(recorder.orders)
                phase, forward = watch.forward_phase, -1
                sequence = _sequence() - 1
                self._owners.setdefault(sequence + thread * THREAD if thread else sequence, order)
                intern = watch.intern
                site = intern(sys._getframe().f_back, parent.site) if watch.stacks else -1
            rows: list[int] = []
            others: list[tuple[str, Any]] = []  # what is no tensor where there could be one
            given = args if operator.in_order else operator.arranged(args)
            for value, slot in zip(given, operator.slots):
                if type(value) in PLAIN:
                    try:
                        rows += (order, slot, tensors.number(value), -1)
                    except Unmeasured as why:
                        rows += (order, slot, -1, watch.unmeasured(why))
                elif type(value) in SIMPLE:
                    others.append((NUMBERS[watch.inputs.index(slot)], value))
                elif value is not ABSENT:
                    rows += nested_rows(watch, state, order, slot, value, others)
            if kwargs:
                arguments = named_rows(watch, state, operator, order, args, others, kwargs, rows)
            elif others or len(given) > operator.tensors:
                arguments = self._arguments(operator, args, others, given[operator.tensors :])
            else:
                arguments = -1
            recorder.call_rows.extend((
                order, name, self._kind, parent.module, parent.module_class, phase, parent.order, forward, arguments, site,
                False, -1, thread,
            ))  # fmt: skip
            if not in_engine:
                watch.executions.log += (operator.forward, name, order, len(rows), rows)  # see `note`
            begun = True
        try:
            result = operator.call(*args, **kwargs) if kwargs else operator.call(*args)
        except BaseException:
            if begun:
                recorder.slot_rows.extend(rows)
            raise
        if not begun:
            return result
        with OwnCode(watch, operator.head):
            try:
                if type(result) is not _Tensor or (operator.aliases and type(args[0]) not in PLAIN):
                    rows += result_rows(watch, state, operator, order, args, result)
                elif operator.aliases:
                    number = tensors.look_up_view(result, args[0], None, operator.key + arguments)
                    rows += (order, watch.first_output, number, -1)
                else:
                    rows += (order, watch.first_output, tensors.look_up(result), -1)
            except Unmeasured as why:
                rows += (order, watch.first_output, -1, watch.unmeasured(why))
            finally:
                recorder.slot_rows.extend(rows)
        if len(recorder.slot_rows) > recorder.full:
            self._flush(operator.head)
        return result

    def _flush(self, head: str) -> None:
        with OwnCode(self._watch, head):
            self._watch.flush_if_full()

    def _know(self, func: Any) -> Operator:
        watch = self._watch
        with self._lock:
            operator = self._operators.get(id(func))
            if operator is None:
                operator = Operator(func)
                operator.ordinary = operator.ordinary and watch.calm and watch.record_backward
                operator.key = (len(self._operators) + 1) << 32
                operator.slots = list(compress(watch.inputs, operator.shows))
                operator.tensors = len(operator.slots)
                if operator.kind != "collective":
                    operator.forward = self._names_of(operator.head, "forward")
                    operator.backward = self._names_of(operator.head, "backward")
                self._operators[id(func)] = operator
        return operator

    def _arguments(self, operator: Operator, args: Any, others: list[tuple[str, Any]], last: Any) -> int:
        """Return the interned text of an operator's arguments that are no tensors.

        `others`: those that stand where a tensor could; `last`: the rest.
        """
        try:
            key = _bytes_of([others, last] if others else last, 2)  # it tells types and signs apart, or refuses
        except ValueError:
            return self._watch.arguments(operator.others(args, others), [])
        found = operator.texts.get(key)
        if found is None:
            found = operator.texts[key] = self._watch.arguments(operator.others(args, others), [])
        return found

    def _names_of(self, head: str, phase: str) -> Names:
        """Return the names of all operators that have this one: they differ in what they are given."""
        key = f"{head}:{phase}"
        return self._names.setdefault(key, Names(self._watch.series(key, None, head), phase))

    def _any(self, operator: Operator, func: Any, state: State, args: Any, kwargs: Any, frame: Any) -> Any:
        """Run an operator of any kind, and record it."""
        if operator.in_group and state.collective:
            return func(*args, **kwargs)
        watch = self._watch
        row: Row | None = None
        stepping: OptimizerStep | None = state.optimizer_step
        with OwnCode(watch, operator.head):
            if stepping is not None and not stepping.covers(frame):
                stepping = None
            if watch.forward_on:
                row = self._before(operator, state, args, kwargs, frame)
        try:
            result = func(*args, **kwargs)
        except Exception:
            if row is not None:
                watch.add(row[3])
            if operator.writes:
                with OwnCode(watch, operator.head):
                    self._written(operator, args, kwargs, None)  # or a part of it
            raise
        if row is not None or operator.writes:
            with OwnCode(watch, operator.head):
                written = self._written(operator, args, kwargs, stepping) if operator.writes else []
                if row is not None:
                    self._after(operator, row, result, written)
        return result

    def _written(self, operator: Operator, args: Any, kwargs: Any, stepping: OptimizerStep | None) -> list[Slot]:
        """Return what an operator may have written to, which is to be measured anew, recorded or not."""
        written = self._watch.flatten("output", operator.written(args, kwargs), [])
        if not operator.pending:
            found = list(map(_tensor_of, written))
            if spared := operator.spared(args, kwargs):
                found = [tensor for tensor in found if id(tensor) not in spared]
            if stepping is not None:
                stepping.wrote(found)
            else:
                self._watch.tensors.note_writes(found)
        return written

    def _before(self, operator: Operator, state: State, args: Any, kwargs: Any, frame: Any) -> Row | None:
        watch, recorder = self._watch, self._watch.recorder
        watch.do_first()
        if self._epoch != recorder.epoch:
            self._begin_step(recorder.epoch)
        in_forward = _task() == -1  # no node runs outside of the engine
        again = not in_forward and operator.kind == "aten" and _grad_is_on() and not _is_engines(frame)
        stack = state.stack
        parent = stack[-1] if stack else None
        phase, wanted = ("forward", watch.record_forward) if in_forward else ("backward", watch.record_backward)
        name = -1
        if not again:
            name = self._name(operator, phase)
            if not wanted or (watch.asks and not watch.in_scope(name, parent, operator.kind, phase)):
                return None
        order = next(recorder.orders)
        positional: list[tuple[str, Any]] = []
        named: list[tuple[str, Any]] = []
        if operator.reads is not None or operator.out:
            args, kwargs = operator.inputs(args, kwargs)
        slots = watch.flatten("input", args, positional)
        if kwargs:
            slots += watch.flatten_named("kwargs", kwargs, named)
        thread = state.number
        if thread < 0:
            thread = watch.thread_number()
        # They are asked for only where memory that holds nothing yet is about.
        versions = [version_of(tensor) for _, tensor in slots] if watch.tensors.uninitialized else None
        rows = watch.rows(order, slots, operator.overwrites)
        first = -1
        if again:  # it has the name of its first execution
            found = watch.executions.find(operator.forward, rows[2::4])
            if found is not None:
                (name, first), phase, wanted = found, "forward", watch.record_forward
            else:
                name, again = self._name(operator, phase), False
            if not wanted or (watch.asks and not watch.in_scope(name, parent, operator.kind, phase)):
                return None
        elif in_forward and operator.kind == "aten":
            watch.executions.note(operator.forward, name, order, rows[2::4])
        if in_forward or again:
            self._owners.setdefault(_sequence() - 1 + thread * THREAD, order)
        else:
            first = self._link(order, thread)
        outer = parent or self._outside
        watch.call_row((
            order, name, watch.kinds[operator.kind], outer.module, outer.module_class, watch.phases[phase], outer.order,
            first, watch.arguments(positional, named) if positional or named else -1,
            watch.site_in(stack, frame) if in_forward or _grad_is_on() else -1, again, -1, thread,
        ))  # fmt: skip
        if watch.keeps_some:
            watch.keep(slots, rows, name)
        return order, name, slots, rows, versions

    def _name(self, operator: Operator, phase: str) -> int:
        """Return the next name of an operator in a phase."""
        if operator.kind == "collective":
            return self._shared_name(operator, phase)
        return operator.forward.next() if phase == "forward" else operator.backward.next()

    def _shared_name(self, operator: Operator, phase: str) -> int:
        """Return the next name of a functional collective: it is numbered with those of Python that have its name."""
        series = self._watch.series(operator.head)
        return series.name(series.next(self._watch.recorder.epoch), phase)

    def _begin_step(self, epoch: int) -> None:
        with self._lock:
            if self._epoch != epoch:
                self._owners.clear()
                for names in self._names.values():
                    names.begin_step()
                self._epoch = epoch

    def _link(self, order: int, thread: int) -> int:
        """Return the forward operator that one inside the engine belongs to; remember one that makes a node of its own."""
        node = _node()
        if node is None or _grad_is_on():  # DDP's reducer works between the nodes; a checkpoint runs the forward again
            self._owners.setdefault(_sequence() - 1 + thread * THREAD, order)
            if node is None:
                return -1
        number = node._sequence_nr()
        found = self._owners.get(number + thread * THREAD, -1)
        return found if found >= 0 else self._owners.get(number, -1)

    def _after(self, operator: Operator, row: Row, result: Any, written: list[Slot]) -> None:
        watch = self._watch
        order, name, inputs, rows, versions = row
        outputs = written if operator.in_group else watch.flatten_output(result) or written
        if operator.writes_unversioned:
            for _, tensor in inputs:
                if not tensor.requires_grad:
                    watch.tensors.mark_unversioned(tensor)
        if operator.foreign:
            watch.tensors.note_foreign_use([tensor for _, tensor in inputs])
        if operator.uninitialized or operator.pending:
            watch.add(rows)
            watch.blank(order, outputs, watch.not_waited if operator.pending else watch.uninitialized)
            if operator.in_group:  # who gave it will wait for it, unseen
                for _, tensor in outputs:
                    watch.tensors.mark_unversioned(tensor)
        else:
            base = inputs[0][1] if operator.aliases and inputs else None
            if versions is None:
                watch.add(rows)
                if len(outputs) == 1:
                    watch.show(order, outputs[0][0], outputs[0][1], name, False, base)
                else:
                    watch.record(order, outputs, name, base=base)
            else:
                record_results(watch, operator, order, name, inputs, versions, rows, outputs, base)
        if watch.scope.stateful:
            watch.ended(name)
        watch.flush_if_full()


def _is_engines(frame: Any) -> bool:
    """Tell whether it is autograd's engine that calls an operator, and no code of Python's: a checkpoint's or a Function's."""
    return frame is None or frame.f_globals.get("__name__") in _ENGINE
