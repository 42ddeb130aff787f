"""The aten level: a TorchDispatchMode that records every dispatched operator, in forward and in backward.

An operator that runs in backward is linked to the forward operator whose autograd node is running: a node has the
sequence number that was the newest when its operator was dispatched. What an operator writes to is read from its schema:
torch raises the versions of those tensors only when the mode has returned.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from numscope.capture.recording.rows import tensors_of
from numscope.capture.torch.identity.storages import version_of
from numscope.capture.torch.identity.uninitialized import record_results
from numscope.capture.torch.levels.compiled import is_faked, is_in_compiled_backward
from numscope.capture.torch.levels.function_names import Function
from numscope.capture.torch.levels.operator_schema import Names, Operator
from numscope.capture.torch.levels.optimizer_operators import OptimizerStep
from numscope.capture.torch.own_code import OwnCode
from numscope.capture.torch.slots import Argument, Arguments, Keywords, Slot
from numscope.capture.torch.thread import State
from numscope.capture.torch.watch import Watch

_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_grad_is_on = torch.is_grad_enabled
_sequence = torch._C._autograd._get_sequence_nr
THREAD = 1 << 48  # how far apart the sequence numbers of two threads are
_ENGINE = ("torch.autograd", "torch.autograd.graph")  # whose code calls the engine


class BegunOperator(NamedTuple):
    """An operator that has begun."""

    order: int
    name: int
    inputs: list[Slot]
    rows: list[int]  # of the inputs' slots
    versions: list[int | None] | None  # of the inputs, where uninitialised memory is about


class AtenMode(TorchDispatchMode):
    """Sees each operator while it is on the mode stack."""

    __slots__ = ("_epoch", "_lock", "_names", "_operators", "_owners", "_watch")

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch
        self._operators: dict[int, Operator] = {}  # by the function's id: its own hash is a call of Python's
        self._owners: dict[int, int] = {}  # a thread's sequence number → order of the forward operator
        self._names: dict[str, Names] = {}
        self._epoch = -1
        self._lock = threading.Lock()

    supports_higher_order_operators = True  # else torch refuses them under a mode

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the mode is off wherever dynamo is on, see `compiled.py`: nothing needs to be switched at each operator

    def __torch_dispatch__(
        self, func: Function, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Any:
        """Run an operator of any kind, and record it."""
        watch = self._watch
        state: State = watch.thread.here
        kwargs = kwargs or {}
        operator = self._operators.get(id(func))
        if operator is None:
            if isinstance(func, torch._ops.HigherOrderOperator):  # torch has taken the mode off for what it calls
                watch.tensors.drop_all_carried_over()
                return func(*args, **kwargs)
            operator = self._know(func)
        if operator.silent or state.busy or not watch.on or (operator.in_group and state.collective):
            return func(*args, **kwargs)
        if is_in_compiled_backward() or is_faked():
            if operator.writes:
                watch.tensors.drop_all_carried_over()
            return func(*args, **kwargs)
        frame = sys._getframe().f_back
        begun: BegunOperator | None = None
        stepping: OptimizerStep | None = state.optimizer_step
        with OwnCode(watch, operator.head):
            if stepping is not None and not stepping.covers(frame):
                stepping = None
            if watch.forward_on:
                begun = self._before(operator, state, args, kwargs, frame)
        outer, state.calling = state.calling, begun.order if begun is not None else -1
        try:
            result = func(*args, **kwargs)
        except Exception:
            if begun is not None:
                watch.add(begun.rows)
            if operator.writes:
                with OwnCode(watch, operator.head):
                    self._written(operator, args, kwargs, None)  # or a part of it
            raise
        finally:
            state.calling = outer
        if begun is not None or operator.writes:
            with OwnCode(watch, operator.head):
                written = self._written(operator, args, kwargs, stepping) if operator.writes else []
                if begun is not None:
                    self._after(operator, begun, result, written)
        return result

    def _know(self, func: Function) -> Operator:
        watch = self._watch
        with self._lock:
            operator = self._operators.get(id(func))
            if operator is None:
                operator = Operator(func)
                operator.ordinary = operator.ordinary and watch.calm and watch.record_backward
                operator.key = (len(self._operators) + 1) << 32
                if operator.kind != "collective":
                    operator.forward = self._names_of(operator.head, "forward")
                    operator.backward = self._names_of(operator.head, "backward")
                self._operators[id(func)] = operator
        return operator

    def _names_of(self, head: str, phase: str) -> Names:
        """Return the names of all operators that have this one: they differ in what they are given."""
        key = f"{head}:{phase}"
        return self._names.setdefault(key, Names(self._watch.series(key, None, head), phase))

    def _written(
        self, operator: Operator, args: Arguments, kwargs: Keywords, stepping: OptimizerStep | None
    ) -> list[Slot]:
        """Return what an operator may have written to, which is to be measured anew, recorded or not."""
        written = self._watch.flatten("output", operator.written(args, kwargs), [])
        if not operator.pending:
            found = [tensor for _, tensor in written]
            if spared := operator.spared(args, kwargs):
                found = [tensor for tensor in found if id(tensor) not in spared]
            if stepping is not None:
                stepping.wrote(found)
            else:
                self._watch.tensors.note_writes(found)
        return written

    def _before(
        self, operator: Operator, state: State, args: Arguments, kwargs: Keywords, frame: FrameType | None
    ) -> BegunOperator | None:
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
        positional: list[Argument] = []
        named: list[Argument] = []
        if operator.reads is not None or operator.out:
            args, kwargs = operator.inputs(args, kwargs)
        slots = watch.flatten("input", args, positional)
        if kwargs:
            slots += watch.flatten_named("kwargs", kwargs, named)
        thread = watch.thread_number()
        # They are asked for only where memory that holds nothing yet is about.
        versions = [version_of(tensor) for _, tensor in slots] if watch.tensors.uninitialized else None
        rows = watch.rows(order, slots, operator.overwrites)
        first = -1
        if again:  # it has the name of its first execution
            found = watch.executions.find(operator.forward, tensors_of(rows))
            if found is not None:
                (name, first), phase, wanted = found, "forward", watch.record_forward
            else:
                name, again = self._name(operator, phase), False
            if not wanted or (watch.asks and not watch.in_scope(name, parent, operator.kind, phase)):
                return None
        elif in_forward and operator.kind == "aten":
            watch.executions.note(operator.forward, name, order, tensors_of(rows))
        if in_forward or again:
            self._owners.setdefault(_sequence() - 1 + thread * THREAD, order)
        else:
            first = self._link(order, thread)
        outer = parent or watch.outside
        recorder.call(
            watch.call_row(
                order,
                name,
                watch.kinds[operator.kind],
                outer.module,
                outer.module_class,
                watch.phases[phase],
                parent=outer.order,
                forward=first,
                arguments=watch.arguments(positional, named),
                stack=watch.site_in(stack, frame) if in_forward or _grad_is_on() else -1,
                recompute=again,
            )
        )
        if watch.keeps_some:
            watch.keep(slots, rows, name)
        return BegunOperator(order, name, slots, rows, versions)

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

    def _after(self, operator: Operator, begun: BegunOperator, result: object, written: list[Slot]) -> None:
        watch = self._watch
        order, name, inputs, rows, versions = begun
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
            base = next((tensor for _, tensor in inputs), None) if operator.aliases else None
            if versions is None:
                watch.add(rows)
                watch.record(order, outputs, name, base=base)
            else:
                record_results(watch, operator, order, name, inputs, versions, rows, outputs, base)
        if watch.scope.stateful:
            watch.ended(name)
        watch.flush_if_full()


def _is_engines(frame: FrameType | None) -> bool:
    """Tell whether it is autograd's engine that calls an operator, and no code of Python's: a checkpoint's or a Function's."""
    return frame is None or frame.f_globals.get("__name__") in _ENGINE
