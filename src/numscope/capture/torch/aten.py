"""The aten level: a TorchDispatchMode that records every dispatched operator, in forward and in backward.

An operator that runs in backward is linked to the forward operator whose autograd node is running: a node has the
sequence number that was the newest when its operator was dispatched. What an operator writes to is read from its schema:
torch raises the versions of those tensors only when the mode has returned.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from numscope.capture.interned import Series
from numscope.capture.torch.blank import record_results
from numscope.capture.torch.collectives import METHODS
from numscope.capture.torch.left import Stepping
from numscope.capture.torch.names import Api
from numscope.capture.torch.storages import version_of
from numscope.capture.torch.thread import OwnWork
from numscope.capture.torch.values import Slot
from numscope.capture.torch.watch import Watch

_SILENT = {
    "detach",
    "alias",
    "lift_fresh",
    "is_same_size",
    "_local_scalar_dense",
    "sym_size",
    "sym_numel",
    "sym_stride",
    "barrier",
    "monitored_barrier_",
    "check_for_nan",
    "_wrap_tensor_autograd",
}
_NO_MODEL = {"profiler", "prim", "prims"}  # namespaces that hold no operators of a model
_NONE: set[int] = set()
_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_sequence = torch._C._autograd._get_sequence_nr
Row = tuple[int, int, list[Slot], list[int], list[int | None] | None]  # order, name, inputs, their rows and versions


class Operator(Api):
    """What numscope knows of one operator, from its name and its schema."""

    __slots__ = ("aliases", "func", "in_backward", "in_group", "kind", "out", "pending", "reads", "scaled", "writes")

    def __init__(self, func: Any) -> None:
        self.func = func  # whose id it is known by
        namespace, _, op = func._schema.name.partition("::")
        silent = op in _SILENT or namespace in _NO_MODEL
        self.in_group = namespace == "c10d"  # of a process group: given memory to write to, and a Work to wait for
        collective = self.in_group or namespace.startswith("_c10d_functional")
        if namespace == "aten" or collective:
            super().__init__("Distributed" if collective else "Aten", op, func, silent)
        else:
            super().__init__("Ops", f"{namespace}.{op}", func, silent)
        self.kind = "collective" if collective else "aten"
        self.in_backward: Series | None = None  # the names of its calls in backward; `series` has those in forward
        self.pending = collective and op != "wait_tensor"  # its result is not there when it returns
        self.aliases = func.is_view  # its results are views, and will have the version of what they are views of
        self.views = self.views or self.aliases
        arguments = list(enumerate(func._schema.arguments))
        self.out = {item.name for _, item in arguments if item.is_out}  # written to and never read
        self.reads: tuple[int, ...] | None = None  # positions, where they are not all but `out`
        self.writes = [(place, item.name) for place, item in arguments if item.alias_info and item.alias_info.is_write]
        if self.in_group and op.rstrip("_") in METHODS:
            _, self.reads, written = METHODS[op.rstrip("_")]
            self.writes = [(place, "") for place in written]
        self.writes_untold = self.writes_untold and not (self.writes or op.startswith("_fused_"))
        # A fused optimizer writes to the gradients only where it is given a scale to divide them by.
        self.scaled = (
            [place for place, item in arguments if item.name == "grads"] if op.startswith("_fused_ada") else []
        )

    def inputs(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return those arguments that the operator reads."""
        if self.reads is not None:
            args = [args[place] for place in self.reads if place < len(args)]
        if self.out:
            kwargs = {name: value for name, value in kwargs.items() if name not in self.out}
        return args, kwargs

    def written(self, args: Any, kwargs: dict[str, Any]) -> list[Any]:
        """Return those arguments that the operator may write to."""
        return [args[place] if place < len(args) else kwargs.get(name) for place, name in self.writes]

    def spared(self, args: Any, kwargs: dict[str, Any]) -> set[int]:
        """Return the ids of those tensors among them that it has only read."""
        if not self.scaled or kwargs.get("grad_scale") is not None:
            return _NONE
        return {id(tensor) for place in self.scaled if place < len(args) for tensor in args[place]}


class AtenMode(TorchDispatchMode):
    """Sees each operator while it is on the mode stack."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch
        self._operators: dict[int, Operator] = {}  # by the function's id: its own hash is a call of Python's
        self._owners: dict[tuple[int, int], int] = {}  # thread, sequence number → order of the forward operator
        self._epoch = -1

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the mode is off wherever dynamo is on, see `compiled.py`: nothing needs to be switched at each operator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        watch = self._watch
        state = watch.thread.__dict__
        if state["busy"] or not watch.on:
            return func(*args, **kwargs)
        operator = self._operators.get(id(func))
        if operator is None:
            operator = self._operators[id(func)] = Operator(func)
        if operator.silent or (operator.in_group and state["collective"]):
            return func(*args, **kwargs)
        guard = state["guard"]
        row: Row | None = None
        stepping: Stepping | None = state["stepping"]
        state["busy"] = True
        guard.__enter__()
        try:
            frame = sys._getframe().f_back  # there is none where autograd works in a thread of its own
            if stepping is not None and not stepping.covers(frame):
                stepping = None
            if watch.forward_on:
                row = self._before(operator, state, args, kwargs, frame)
        except Exception as error:
            watch.fault(operator.head, error)
        finally:
            guard.__exit__(None, None, None)
            state["busy"] = False
        try:
            result = func(*args, **kwargs)
        except Exception:
            if row is not None:
                watch.add(row[3])
            if operator.writes:
                with OwnWork(watch, operator.head):
                    self._written(operator, args, kwargs, None)  # or a part of it
            raise
        if row is not None or operator.writes:
            state["busy"] = True
            guard.__enter__()
            try:
                written = self._written(operator, args, kwargs, stepping) if operator.writes else []
                if row is not None:
                    self._after(operator, row, result, written)
            except Exception as error:
                watch.fault(operator.head, error)
            finally:
                guard.__exit__(None, None, None)
                state["busy"] = False
        return result

    def _written(self, operator: Operator, args: Any, kwargs: Any, stepping: Stepping | None) -> list[Slot]:
        """Return what an operator may have written to, which is to be measured anew, recorded or not."""
        written = self._watch.flatten("output", operator.written(args, kwargs), [])
        if not operator.pending:
            spared = operator.spared(args, kwargs)
            wrote = self._watch.tensors.overwritten if stepping is None else stepping.wrote
            for _, tensor in written:
                if id(tensor) not in spared:
                    wrote(tensor)
        return written

    def _before(self, operator: Operator, state: dict[str, Any], args: Any, kwargs: Any, frame: Any) -> Row | None:
        watch = self._watch
        recorder = watch.recorder
        node = _node()
        in_forward = node is None and _task() == -1  # DDP's reducer works between the nodes
        stack = state["stack"]
        parent = stack[-1] if stack else None
        if in_forward:
            series = operator.series or self._learn(operator, "forward")
            number = series.next(recorder.epoch)
            names, phase, wanted = series.forward, "forward", watch.record_forward
        else:
            series = operator.in_backward or self._learn(operator, "backward")
            number = series.next(recorder.epoch)
            names, phase, wanted = series.backward, "backward", watch.record_backward
        name = names[number] if number < len(names) else series.name(number, phase)
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
        thread = state["number"]
        if thread < 0:
            thread = watch.thread_number()
        watch.call_row((
            order, name, watch.kinds[operator.kind],
            parent.module if parent else watch.no_text, parent.module_class if parent else watch.no_text,
            watch.phases[phase], parent.order if parent else -1, self._link(order, node, thread),
            watch.arguments(positional, named) if positional or named else -1,
            watch.site_in(stack, frame) if in_forward or torch.is_grad_enabled() else -1, False, -1, thread,
        ))  # fmt: skip
        # They are asked for only where memory that holds nothing yet is about.
        versions = [version_of(tensor) for _, tensor in slots] if watch.tensors.blanks else None
        rows = watch.rows(order, slots, operator.overwrites)
        if watch.keeps_some:
            watch.keep(slots, rows, name)
        return order, name, slots, rows, versions

    def _learn(self, operator: Operator, phase: str) -> Series:
        # A functional collective is numbered with those of Python that have its name.
        key = operator.head if operator.kind == "collective" else f"{operator.head}:{phase}"
        series = self._watch.series(key, None, operator.head)
        if phase == "forward":
            operator.series = series
        else:
            operator.in_backward = series
        return series

    def _link(self, order: int, node: Any, thread: int) -> int:
        """Return the forward operator that a backward one belongs to; remember a forward one."""
        epoch = self._watch.recorder.epoch
        if self._epoch != epoch:
            self._epoch = epoch
            self._owners.clear()
        if node is not None:
            if torch.is_grad_enabled():  # a checkpoint runs it again, and makes a node of its own
                self._owners.setdefault((thread, _sequence() - 1), order)
            number = node._sequence_nr()
            return self._owners.get((thread, number), self._owners.get((0, number), -1))
        self._owners.setdefault((thread, _sequence() - 1), order)
        return -1

    def _after(self, operator: Operator, row: Row, result: Any, written: list[Slot]) -> None:
        watch = self._watch
        order, name, inputs, rows, versions = row
        outputs = written if operator.in_group else watch.flatten_output(result) or written
        if operator.writes_untold:
            for _, tensor in inputs:
                if not tensor.requires_grad:
                    watch.tensors.distrust(tensor)
        if operator.foreign and watch.tensors.any_settled:
            for _, tensor in inputs:
                watch.tensors.unsettle(tensor)
        if operator.uninitialized or operator.pending:
            watch.add(rows)
            watch.blank(order, outputs, watch.not_waited if operator.pending else watch.uninitialized)
            if operator.in_group:  # who gave it will wait for it, unseen
                for _, tensor in outputs:
                    watch.tensors.distrust(tensor)
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
