"""The API level: a TorchFunctionMode that records every torch function, also those imported before numscope was."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from numscope.capture.torch.backward import BackwardCall, Targets, attach, running, sequence
from numscope.capture.torch.blank import record_results
from numscope.capture.torch.compiled import is_tracing
from numscope.capture.torch.names import Api, ApiTable, Function
from numscope.capture.torch.tensors import version_of
from numscope.capture.torch.thread import Open, OwnWork
from numscope.capture.torch.values import Slot
from numscope.capture.torch.watch import Watch

_task = torch._C._current_graph_task_id


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
            self._after(result)
        except Exception as error:
            self.watch.fault(self.api.head, error)
        finally:
            guard.__exit__(None, None, None)
            state["busy"] = False

    def _before(self, state: dict[str, Any], args: Any, kwargs: Any, frame: Any) -> bool:
        """Record the inputs as they are before the call; tell whether the call is to be recorded."""
        watch = self.watch
        recorder = watch.recorder
        series = self.api.series
        if series is None:
            series = self.api.series = watch.series(self.api.head)
        self._series = series
        stack = state["stack"]
        self._parent = parent = stack[-1] if stack else None
        self._phase = "forward"
        self._first_order = -1
        self._recompute = False
        if _task() != -1:  # the engine runs
            self._recompute = torch.is_grad_enabled()
            if parent is None and not self._recompute:
                self._parent = parent = running(watch)
                self._phase = "backward"
        if not self._recompute:
            self._number = number = series.next(recorder.epoch)
            names = series.forward
            self._name = names[number] if number < len(names) else series.name(number)
            if watch.asks and not watch.in_scope(self._name, parent, "api", self._phase):
                return False
        self.order = order = next(recorder.orders)
        self._site = watch.site_in(stack, frame)
        positional: list[tuple[str, Any]] = []
        named: list[tuple[str, Any]] = []
        slots = watch.flatten("input", args, positional)
        if kwargs:
            slots += watch.flatten_named("kwargs", kwargs, named)
        self._arguments = watch.arguments(positional, named) if positional or named else -1
        if self.api.may_write:
            for _, tensor in slots:
                watch.tensors.unsettle(tensor)
                watch.tensors.doubt_others(tensor)
        self._input_tensors = slots
        self._inputs = watch.rows(order, slots, self.api.overwrites) if watch.record_forward else []
        if self._recompute:
            found = watch.executions.find(series, self._inputs[2::4])
            self._number, self._first_order = found or (series.next(recorder.epoch), -1)
            self._name = series.name(self._number)
            if not watch.in_scope(self._name, parent, "api"):
                return False
        else:
            watch.executions.note(series, self._number, order, self._inputs[2::4])
        if watch.keeps_some and self._inputs:
            watch.keep(slots, self._inputs, self._name)
        try:
            self._versions: list[int | None] = [tensor._version for _, tensor in slots]
        except RuntimeError:
            self._versions = [version_of(tensor) for _, tensor in slots]
        self._targets = None
        if watch.record_backward and torch.is_grad_enabled():
            self._targets = Targets(watch, slots)
            self._first = sequence()
        return True

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

    def _after(self, result: Any) -> None:
        """Record the outputs, and watch for the gradients."""
        watch = self.watch
        if self.api.writes_untold:
            self._distrust_written()
        outputs = watch.flatten_output(result) or self._written()
        if not outputs:  # computes no tensor: no call
            if not self._recompute:
                self._series.give_back(self._number)
            return
        if watch.record_forward:
            self._row(-1)
            if self.api.uninitialized:
                watch.add(self._inputs)
                watch.blank(self.order, outputs)
            elif not watch.tensors.any_blank:
                watch.add(self._inputs)
                watch.record(self.order, outputs, self._name)
            else:
                record_results(
                    watch, self.api, self.order, self._name, self._input_tensors, self._versions, self._inputs, outputs
                )
        if self._targets is not None and self._targets.slots:
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
        for (_, tensor), version in zip(self._input_tensors, self._versions):
            if not tensor.requires_grad and version_of(tensor) == version:
                self.watch.tensors.distrust(tensor)

    def _written(self) -> list[Slot]:
        """Return the inputs that the call has written to, as its outputs."""
        written = [
            tensor
            for (_, tensor), version in zip(self._input_tensors, self._versions)
            if version is not None and version_of(tensor) != version
        ]
        return [(self.watch.slot_id("output", index), tensor) for index, tensor in enumerate(written)]

    def _row(self, error: int) -> None:
        watch = self.watch
        module, module_class = self._module()
        watch.call_row(
            self.order, self._name, watch.api_kind, module, module_class, watch.phases[self._phase],
            self._parent.order if self._parent else -1, self._first_order, self._arguments, self._site, self._recompute, error,
            watch.thread_number(),
        )  # fmt: skip

    def raised(self, error: Exception) -> None:
        """Record a call that raised; the user may catch it and go on."""
        if type(error).__name__ == "_StopRecomputationError":  # how checkpoint ends a recomputation
            return
        with OwnWork(self.watch, self.api.head):
            self._row(self.watch.recorder.strings.id(f"{type(error).__name__}: {error}"[:300]))
            self.watch.add(self._inputs)
