"""The API level: a TorchFunctionMode that records every torch function, also those imported before numscope was."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from numscope.capture.interned import Series
from numscope.capture.torch.backward import BackwardCall, Targets, attach, running
from numscope.capture.torch.blank import record_results
from numscope.capture.torch.compiled import is_tracing
from numscope.capture.torch.names import Api, ApiTable, Function
from numscope.capture.torch.tensors import version_of
from numscope.capture.torch.thread import Open, OwnWork
from numscope.capture.torch.values import Slot
from numscope.capture.torch.watch import Watch

_task = torch._C._current_graph_task_id
_sequence = torch._C._autograd._get_sequence_nr


class ApiMode(TorchFunctionMode):
    """Sees each call of a torch function while it is on the mode stack."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch
        self._table = ApiTable()
        watch.recorder.sites.boundary(record_call.__code__)  # the stack outside of a composite is the composite's own

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs is None:
            kwargs = {}
        api = self._table.known.get(func) or self._table[func]
        if api.plain:  # the most there are: shapes, gradients, flags
            return func(*args, **kwargs)
        watch = self._watch
        state = watch.thread.__dict__
        if api.transparent and not state["busy"]:
            return self._inside(api, func, args, kwargs)
        if api.silent:
            if state["busy"] or not watch.on:
                return func(*args, **kwargs)
            if api.exposes and isinstance(args[0], torch.Tensor):
                watch.tensors.distrust(args[0], storage_only=api.op in ("storage", "untyped_storage"))
            if not (api.cuts and args[0].requires_grad):
                return func(*args, **kwargs)
        if state["busy"] or state["quiet"] is not None or not (watch.on and watch.forward_on) or is_tracing():
            return func(*args, **kwargs)
        stack = state["stack"]
        if stack and (op := stack[-1].op) and _same_name(op, api.op):
            return func(*args, **kwargs)  # the composite itself, not a call inside it
        if api.composite:
            return record_call(
                watch, api, partial(self._inside, api, func, args, kwargs), args, kwargs, sys._getframe(1)
            )
        call = _ApiCall(watch, api)
        wanted = call.begin(state, args, kwargs, sys._getframe(1))
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            if wanted:
                call.raised(error)
            raise
        if wanted:
            call.end(state, result)
        return result

    def _inside(self, api: Api, func: Function, args: Any, kwargs: Any) -> Any:
        """Run a function so that the torch functions it calls are seen too."""
        if api.twin is None:
            return func(*args, **kwargs)
        with self:
            return api.twin(*args, **kwargs)


def record_call(watch: Watch, api: Api, work: Function, args: Any, kwargs: Any, frame: Any) -> Any:
    """Do the work of a call, recording it and the calls inside it."""
    call = _ApiCall(watch, api)
    state = watch.thread.__dict__
    wanted = call.begin(state, args, kwargs, frame)
    stack = state["stack"]
    stack.append(call.open() if wanted else _unrecorded(watch, api))
    try:
        result = work()
    except Exception as error:
        if wanted:
            call.raised(error)
        raise
    finally:
        stack.pop()
    if wanted:
        call.end(state, result)
    return result


def _unrecorded(watch: Watch, api: Api) -> Open:
    """Return a composite that is not recorded: its inner calls belong to what it runs in."""
    stack = watch.thread.stack
    if not stack:
        return Open(-1, watch.no_text, watch.no_text, "", -1, api.op, None)
    outer = stack[-1]
    return Open(outer.order, outer.module, outer.module_class, outer.path, outer.site, api.op, outer.backward)


def _same_name(outer: str, inner: str) -> bool:
    outer, inner = outer.strip("_"), inner.strip("_")
    return inner.startswith(outer) or outer.startswith(inner)


class _ApiCall:
    """One call of a torch function, from before to after."""

    __slots__ = (
        "_arguments", "_first", "_first_order", "_input_tensors", "_inputs", "_name", "_number", "_parent", "_phase",
        "_recompute", "_series", "_site", "_targets", "_versions", "api", "backward", "order", "watch",
    )  # fmt: skip

    def __init__(self, watch: Watch, api: Api) -> None:
        self.watch = watch
        self.api = api
        self.backward: BackwardCall | None = None

    def begin(self, state: dict[str, Any], args: Any, kwargs: Any, frame: Any) -> bool:
        """Do what is to be done before the call, unseen; a fault of ours is counted. Tell whether `end` is to follow."""
        guard = state["guard"]
        state["busy"] = True
        guard.__enter__()
        try:
            return self._before(state, args, kwargs, frame)
        except Exception as error:
            self.watch.fault(self.api.head, error)
            return False
        finally:
            guard.__exit__(None, None, None)
            state["busy"] = False

    def end(self, state: dict[str, Any], result: Any) -> None:
        """Do what is to be done after the call."""
        guard = state["guard"]
        state["busy"] = True
        guard.__enter__()
        try:
            self._after(state, result)
        except Exception as error:
            self.watch.fault(self.api.head, error)
        finally:
            guard.__exit__(None, None, None)
            state["busy"] = False

    def _before(self, state: dict[str, Any], args: Any, kwargs: Any, frame: Any) -> bool:
        """Record the inputs as they are before the call; tell whether the call is to be recorded."""
        watch = self.watch
        recorder = watch.recorder
        api = self.api
        self._series = series = api.series or self._learn_series()
        stack = state["stack"]
        self._parent = parent = stack[-1] if stack else None
        self._phase = watch.forward_phase
        self._first_order = -1
        self._recompute = recompute = False
        if _task() != -1:  # the engine runs
            self._recompute = recompute = torch.is_grad_enabled()
            if parent is None and not recompute:
                self._parent = parent = running(watch)
                self._phase = watch.backward_phase
        if not recompute:
            self._number = number = series.next(recorder.epoch)
            names = series.forward
            self._name = names[number] if number < len(names) else series.name(number)
            if watch.asks and not watch.in_scope(self._name, parent, "api", watch.phase_names[self._phase]):
                return False
        self.order = order = next(recorder.orders)
        self._site = watch.intern(frame, stack[-1].site if stack else -1) if watch.stacks else -1
        positional: list[tuple[str, Any]] = []
        named: list[tuple[str, Any]] = []
        self._input_tensors = slots = watch.flatten("input", args, positional)
        if kwargs:
            slots += watch.flatten_named("kwargs", kwargs, named)
        self._arguments = watch.arguments(positional, named) if positional or named else -1
        if api.may_write:
            for _, tensor in slots:
                watch.tensors.unsettle(tensor)
                watch.tensors.doubt_others(tensor)
        self._inputs = rows = watch.rows(order, slots, api.overwrites) if watch.record_forward else []
        if recompute:
            if not self._find_first(rows, parent):
                return False
        else:
            watch.executions.note(series, number, order, rows[2::4])
        if watch.keeps_some and rows:
            watch.keep(slots, rows, self._name)
        # What was written to is asked only where it can be the result, or where memory that holds nothing yet is about.
        self._versions: list[int | None] | None = None
        if not api.computes or api.may_write or api.writes_untold or watch.tensors.blanks:
            self._versions = [version_of(tensor) for _, tensor in slots]
        self._targets = None
        if watch.record_backward and torch.is_grad_enabled():
            for _, tensor in slots:
                if tensor.requires_grad:
                    self._targets = Targets(watch, slots)
                    self._first = _sequence()
                    break
        return True

    def _learn_series(self) -> Series:
        series = self.api.series = self.watch.series(self.api.head)
        return series

    def _find_first(self, rows: list[int], parent: Open | None) -> bool:
        """Take the name of the first execution of a call that is recomputed; tell whether it is to be recorded."""
        watch, series = self.watch, self._series
        found = watch.executions.find(series, rows[2::4])
        self._number, self._first_order = found or (series.next(watch.recorder.epoch), -1)
        self._name = series.name(self._number)
        return watch.in_scope(self._name, parent, "api")

    def open(self) -> Open:
        """Return this call as the parent of the calls inside it."""
        module, module_class = self._module()
        self.backward = self._backward(module, module_class)
        path = self._parent.path if self._parent else ""
        return Open(self.order, module, module_class, path, self._site, self.api.op, self.backward)

    def _module(self) -> tuple[int, int]:
        parent = self._parent
        return (parent.module, parent.module_class) if parent else (self.watch.no_text, self.watch.no_text)

    def _backward(self, module: int, module_class: int) -> BackwardCall:
        number, names = self._number, self._series.backward
        return BackwardCall(
            self.watch, names[number] if number < len(names) else self._series.name(number, "backward"),
            self.watch.api_kind, module, module_class, self.order if self.watch.record_forward else -1, self._site,
            self._parent.backward if self._parent else None,
        )  # fmt: skip

    def _after(self, state: dict[str, Any], result: Any) -> None:
        """Record the outputs, and watch for the gradients."""
        watch = self.watch
        api = self.api
        if api.writes_untold:
            self._distrust_written()
        outputs = [(watch.first_output, result)] if type(result) is torch.Tensor else watch.flatten_output(result)
        if outputs:
            api.computes = True
        elif not (outputs := self._written()):  # computes no tensor: no call
            if not self._recompute:
                self._series.give_back(self._number)
            return
        if watch.record_forward:
            self._row(state, -1)
            if api.uninitialized:
                watch.add(self._inputs)
                watch.blank(self.order, outputs)
            elif not watch.tensors.blanks or self._versions is None:
                watch.add(self._inputs)
                for slot, tensor in outputs:
                    watch.show(self.order, slot, tensor, self._name, False)
            else:
                record_results(
                    watch, api, self.order, self._name, self._input_tensors, self._versions, self._inputs, outputs
                )
        if self._targets is not None:
            for _, tensor in outputs:
                if tensor.requires_grad:
                    call = self.backward or self._backward(*self._module())
                    attach(watch, call, outputs, self._targets, self._first)
                    break
        if watch.scope.stateful:
            watch.ended(self._name)
        watch.flush_if_full()

    def _distrust_written(self) -> None:
        """Measure anew what the call may have written without telling the version counter."""
        for (_, tensor), version in zip(self._input_tensors, self._versions or ()):
            if not tensor.requires_grad and version_of(tensor) == version:
                self.watch.tensors.distrust(tensor)

    def _written(self) -> list[Slot]:
        """Return the inputs that the call has written to, as its outputs."""
        written = [
            tensor
            for (_, tensor), version in zip(self._input_tensors, self._versions or ())
            if version is not None and version_of(tensor) != version
        ]
        return [(self.watch.slot_id("output", index), tensor) for index, tensor in enumerate(written)]

    def _row(self, state: dict[str, Any], error: int) -> None:
        watch = self.watch
        parent = self._parent
        number = state["number"]
        watch.call_row((
            self.order, self._name, watch.api_kind, parent.module if parent else watch.no_text,
            parent.module_class if parent else watch.no_text, self._phase, parent.order if parent else -1,
            self._first_order, self._arguments, self._site, self._recompute, error,
            number if number >= 0 else watch.thread_number(),
        ))  # fmt: skip

    def raised(self, error: Exception) -> None:
        """Record a call that raised; the user may catch it and go on."""
        if type(error).__name__ == "_StopRecomputationError":  # how checkpoint ends a recomputation
            return
        with OwnWork(self.watch, self.api.head):
            self._row(
                self.watch.thread.__dict__, self.watch.recorder.strings.id(f"{type(error).__name__}: {error}"[:300])
            )
            self.watch.add(self._inputs)
