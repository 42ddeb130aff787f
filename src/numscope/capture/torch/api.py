"""The API level: a TorchFunctionMode that records every torch function, also those imported before numscope was."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from numscope.capture.torch.backward import BackwardCall, Edge, attach, edges_of, running, sequence
from numscope.capture.torch.compiled import is_tracing
from numscope.capture.torch.names import Api, ApiTable, Function
from numscope.capture.torch.recompute import is_recomputing
from numscope.capture.torch.tensors import version_of
from numscope.capture.torch.watch import Open, OwnWork, Slot, Watch


class ApiMode(TorchFunctionMode):
    """Sees each call of a torch function while it is on the mode stack."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch
        self._table = ApiTable()

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        api = self._table[func]
        if api.silent and not (api.exposes or api.cuts):  # the most there are: shapes, gradients, flags
            return func(*args, **kwargs)
        watch = self._watch
        thread = watch.thread
        if api.transparent and not thread.busy:
            return self._inside(api, func, args, kwargs)
        if api.silent:
            if thread.busy or not watch.on:
                return func(*args, **kwargs)
            if api.exposes and isinstance(args[0], torch.Tensor):
                watch.tensors.distrust(args[0])
            if not (api.cuts and args[0].requires_grad):
                return func(*args, **kwargs)
        if thread.busy or thread.quiet or not (watch.on and watch.forward_on):
            return func(*args, **kwargs)
        if is_tracing():
            return func(*args, **kwargs)
        stack = thread.stack
        if stack and stack[-1].op and _same_name(stack[-1].op, api.op):
            return func(*args, **kwargs)  # the composite itself, not a call inside it
        work = partial(self._inside, api, func, args, kwargs) if api.composite else partial(func, *args, **kwargs)
        return record_call(watch, api, work, args, kwargs, sys._getframe(1))

    def _inside(self, api: Api, func: Function, args: Any, kwargs: Any) -> Any:
        """Run a function so that the torch functions it calls are seen too."""
        if api.twin is None:
            return func(*args, **kwargs)
        with self:
            return api.twin(*args, **kwargs)


def record_call(watch: Watch, api: Api, work: Function, args: Any, kwargs: Any, frame: Any) -> Any:
    """Do the work of a call, recording it; a fault of ours is counted, one of the call's is the user's."""
    call = _ApiCall(watch, api)
    own = OwnWork(watch, api.head)
    wanted = False
    with own:
        wanted = call.before(args, kwargs, frame)
    stack = watch.thread.stack
    if api.composite:
        stack.append(call.open() if wanted else _unrecorded(watch, api))
    try:
        result = work()
    except Exception as error:
        if wanted:
            with own:
                call.raised(error)
        raise
    finally:
        if api.composite:
            stack.pop()
    if wanted:
        with own:
            call.after(result)
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
        "_arguments", "_edges", "_first", "_first_order", "_input_tensors", "_inputs", "_name", "_number", "_parent",
        "_phase", "_recompute", "_series", "_site", "_versions", "api", "backward", "order", "watch",
    )  # fmt: skip

    def __init__(self, watch: Watch, api: Api) -> None:
        self.watch = watch
        self.api = api
        self.backward: BackwardCall | None = None

    def before(self, args: Any, kwargs: Any, frame: Any) -> bool:
        """Record the inputs as they are before the call; tell whether the call is to be recorded."""
        watch = self.watch
        recorder = watch.recorder
        epoch = recorder.epoch
        self._series = series = watch.series(self.api.head)
        in_backward = torch._C._current_graph_task_id() != -1
        self._recompute = recompute = in_backward and is_recomputing()
        self._first_order = -1
        stack = watch.thread.stack
        self._parent = stack[-1] if stack else None
        self._phase = "forward"
        if in_backward and self._parent is None and not recompute:
            self._parent = running(watch)
            self._phase = "backward" if self._parent else "forward"
        if not recompute:
            self._number = series.next(epoch)
            self._name = series.name(self._number)
            if not watch.in_scope(self._name, self._parent, "api", self._phase):
                return False
        self.order = recorder.order()
        self._site = watch.site(frame)
        positional: list[tuple[str, Any]] = []
        named: list[tuple[str, Any]] = []
        slots = watch.flatten("input", args, positional)
        if kwargs:
            slots += watch.flatten_named("kwargs", kwargs, named)
        self._arguments = watch.arguments(positional, named) if positional or named else -1
        self._input_tensors = slots
        self._inputs = watch.measure(slots, self.api.overwrites) if watch.record_forward else []
        if recompute:
            found = watch.executions.find(series, self._inputs)
            self._number, self._first_order = found or (series.next(epoch), -1)
            self._name = series.name(self._number)
            if not watch.in_scope(self._name, self._parent, "api"):
                return False
        else:
            watch.executions.note(series, self._number, self.order, self._inputs)
        watch.keep(slots, self._inputs, self._name)
        try:
            self._versions: list[int | None] = [tensor._version for _, tensor in slots]
        except RuntimeError:
            self._versions = [version_of(tensor) for _, tensor in slots]
        self._edges: list[Edge] = []
        self._first = 0
        if watch.record_backward and torch.is_grad_enabled():
            self._edges = edges_of(slots)
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
        return BackwardCall(
            self.watch, self._series.name(self._number, "backward"), self.watch.kinds["api"], module, module_class,
            self.order if self.watch.record_forward else -1, self._site, self._parent.backward if self._parent else None,
        )  # fmt: skip

    def after(self, result: Any) -> None:
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
            watch.slots(self.order, self._inputs)
            if self.api.uninitialized:
                watch.slots(self.order, watch.blank(outputs))
            else:
                watch.slots(self.order, watch.measure_and_keep(outputs, self._name))
        if self._edges and any(tensor.requires_grad for _, tensor in outputs):
            module, module_class = self._module()
            call = self.backward or self._backward(module, module_class)
            attach(watch, call, watch.gradient_slots(outputs), self._edges, self._first)
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
        watch.recorder.call(
            self.order, self._name, watch.kinds["api"], module, module_class, watch.phases[self._phase],
            self._parent.order if self._parent else -1, self._first_order, self._arguments, self._site, self._recompute, error,
            watch.thread_number(),
        )  # fmt: skip

    def raised(self, error: Exception) -> None:
        """Record a call that raised; the user may catch it and go on."""
        if type(error).__name__ == "_StopRecomputationError":  # how checkpoint ends a recomputation
            return
        self._row(self.watch.recorder.strings.id(f"{type(error).__name__}: {error}"[:300]))
        self.watch.slots(self.order, self._inputs)
