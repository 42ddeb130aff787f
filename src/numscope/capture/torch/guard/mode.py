"""Where the guard sees calls: a function mode for torch functions, a replaced `__call__` for modules.

It has capture's names for calls, but not its path: for a call with finite results nothing is described, keyed or written
down. Results on the CPU are looked at on the spot (on_cpu.py); those of other devices leave their counts there
(on_device.py). The autograd nodes that calls make are in backward.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from numscope.capture.recording.interned import Series
from numscope.capture.torch.autograd.graph import Edge, edges_of
from numscope.capture.torch.guard import on_cpu, on_device
from numscope.capture.torch.guard.backward import CallEdge, ModuleBackward, ModuleGradients, call_edges, hook_call
from numscope.capture.torch.guard.calls import Given, LiveCall, OpenCall, OpenModule, key_of, version_of
from numscope.capture.torch.guard.device_log import MODULES_THAT_TRANSMIT, DeviceLog
from numscope.capture.torch.guard.flags import is_finite
from numscope.capture.torch.guard.guarded_job import GuardedJob
from numscope.capture.torch.levels.api import ApiMode, _same_name
from numscope.capture.torch.levels.compiled import is_tracing
from numscope.capture.torch.levels.function_names import Api, Function, is_cast
from numscope.capture.torch.levels.modules import Module, Modules
from numscope.capture.torch.own_code import OwnCode
from numscope.capture.torch.slots import Arguments, Keywords, Slot
from numscope.capture.torch.thread import Open, State
from numscope.capture.torch.watch import Watch

Tensor = torch.Tensor
_sequence = torch._C._autograd._get_sequence_nr
_task = torch._C._current_graph_task_id
_transform = torch._C._functorch.peek_interpreter_stack  # vmap, grad …: their results are looked at, not their inside


class GuardMode(ApiMode):
    """Sees each call of a torch function, and looks at its results."""

    def __init__(self, job: GuardedJob) -> None:
        super().__init__(job.watch)
        self._job = job

    def __torch_function__(
        self, func: Function, types: Collection[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        kwargs = kwargs or {}
        watch = self._watch
        api = self._table.known.get(func) or self._table[func]
        if api.plain:  # the most there are: shapes, gradients, flags
            return func(*args, **kwargs)
        state = watch.thread.here
        if api.transparent and not state.busy:
            return self._inside(api, func, args, kwargs)
        silent = api.silent and not is_cast(api, args, kwargs)
        if silent or state.busy or not watch.on or is_tracing() or _transform() is not None:
            return func(*args, **kwargs)
        stack = state.stack
        if stack and stack[-1].op and _same_name(stack[-1].op, api.op):
            return func(*args, **kwargs)  # the composite itself, not a call inside it
        work = (lambda: self._inside(api, func, args, kwargs)) if api.composite else (lambda: func(*args, **kwargs))
        return watch_call(self._job, api, work, args, kwargs, sys._getframe(1))


class WriteMode(ApiMode):
    """At module level, on a device: only sees to it that nothing is overwritten before it was looked at."""

    def __init__(self, job: GuardedJob) -> None:
        super().__init__(job.watch)
        self._late = job.late

    def __torch_function__(
        self, func: Function, types: Collection[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        kwargs = kwargs or {}
        if not self._late.waiting:
            return func(*args, **kwargs)
        api = self._table.known.get(func) or self._table[func]
        if api.may_write or "out" in kwargs:
            _before_writing(self._late, api, args, kwargs)
        if not (api.composite or api.transparent):
            return func(*args, **kwargs)
        stack = self._watch.thread.here.stack
        outer = stack[-1] if stack else None
        if outer is not None and outer.op and _same_name(outer.op, api.op):
            return func(*args, **kwargs)  # the composite itself, not a call inside it
        module, module_class, path = (outer.module, outer.module_class, outer.path) if outer else (-1, -1, "")
        stack.append(Open(-1, module, module_class, path, -1, api.op, None))
        try:
            return self._inside(api, func, args, kwargs)
        finally:
            stack.pop()


def _before_writing(late: DeviceLog, api: Api, args: Arguments, kwargs: Keywords) -> None:
    """Look at what waits, where a call is about to write to it, or may do so without a word."""
    if "out" in kwargs or api.foreign:
        late.launch()
    elif api.overwrites:
        late.before_write(args[0] if args else None)


def watch_call(
    job: GuardedJob,
    api: Api,
    work: Callable[[], object],
    args: Arguments,
    kwargs: Keywords,
    frame: FrameType | None,
) -> object:
    """Do the work of a call, and look at its results."""
    watch = job.watch
    state = watch.thread.here
    stack = state.stack
    parent = stack[-1] if stack else None
    first = -1
    edges: list[CallEdge] = []
    try:
        task = _task()
        if job.has_gradients_to_come and task == -1:
            job.end_pass()
        if (api.may_write or kwargs) and job.late.waiting:
            _before_writing(job.late, api, args, kwargs)
        series = watch.series(api.head)
        tensors = [item for item in args if isinstance(item, Tensor)]
        number, recompute = numbered(watch, series, tensors, task)
        call = LiveCall(series, number, "api", api.op, parent, watch.site(frame), api.transmits, task != -1)
        given = Given(args, kwargs, tensors, [version_of(item) for item in tensors])
        if api.overwrites and tensors:
            target = tensors[0]
            if job.is_late(target):
                on_device.before_write(job, target)
            else:
                given.was_finite = target is state.last or _is_finite_before(watch, target)
                given.saved = on_cpu.save(job, target)
        if torch.is_grad_enabled():
            edges = call_edges(args)
            first = _sequence()
    except Exception as error:
        watch.fault(api.head, error)
        return work()
    if api.composite:
        path = parent.path if parent else ""
        module, module_class = (parent.module, parent.module_class) if parent else (watch.no_text, watch.no_text)
        opened = OpenCall(-1, module, module_class, path, call.site, api.op, None)
        opened.call, opened.outer = call, parent
        stack.append(opened)
        try:
            result = work()
        finally:
            stack.pop()
    else:
        result = work()
    try:
        outputs = _results(result, given)
        if not outputs:
            if not recompute:
                series.give_back(number)
            return result
        if not outputs[0].requires_grad:
            call.aside = call.flows = not (stack and isinstance(stack[0], OpenModule))
        with OwnCode(watch):
            if api.uninitialized:
                for tensor in outputs:
                    job.marks.set(tensor, key_of(tensor), "blank")
                return result
            late = job.is_late(outputs[0])
            for tensor in tensors:
                late = late or not tensor.is_cpu
            if late:
                state.last = None
                fresh = on_device.look_at_call(job, api, call, given, outputs)
            else:
                fresh = on_cpu.look_at_call(job, api, call, given, outputs)
        if fresh and first >= 0 and outputs[0].requires_grad:
            hook_call(job, call, outputs, edges, first)
    except Exception as error:
        watch.fault(api.head, error)
    return result


def _results(result: object, given: Given) -> tuple[Tensor, ...]:
    """Return the tensors of a result; of a call that gives back nothing, those that it wrote to."""
    if type(result) is Tensor:
        return (result,)
    if result is None:
        pairs = zip(given.tensors, given.versions)
        return tuple(tensor for tensor, version in pairs if version_of(tensor) != version)
    return _tensors(result)


def _is_finite_before(watch: Watch, tensor: Tensor) -> bool:
    """Tell whether a tensor of the CPU that is about to be overwritten is finite."""
    with OwnCode(watch):
        finite = is_finite(tensor)
    return finite


def numbered(watch: Watch, series: Series, tensors: list[Tensor], task: int) -> tuple[int, bool]:
    """Return a call's number, and whether it is a recomputation, which takes the number of the first execution."""
    inputs = [_address(item) for item in tensors[:2]]
    if task != -1 and torch.is_grad_enabled():
        known = watch.executions.find(series, inputs)
        if known is None:
            return series.next(watch.recorder.epoch), True
        number, _ = known
        return number, True
    number = series.next(watch.recorder.epoch)
    watch.executions.note(series, number, 0, inputs)
    return number, False


@dataclass(frozen=True)
class _ModuleFacts:
    """The facts that all calls of a module share."""

    path: str
    path_id: int
    class_id: int
    series: Series
    op: str  # its class, as an operator


class GuardModules(Modules):
    """Knows the modules by path; looks at what enters the model, and at module level at what modules give back."""

    def __init__(self, job: GuardedJob, models: dict[str, Module]) -> None:
        self._job = job
        self._known: dict[tuple[str, type], _ModuleFacts] = {}
        self._gradients = ModuleGradients(job)
        super().__init__(job.watch, models)

    def _watch_gradient(self, parameter: torch.nn.Parameter, path: str, name: str) -> None:
        """Do nothing: gradients are looked at where the optimizer takes them."""

    def _record(
        self, original: Callable[..., Any], state: State, module: Module, args: Arguments, kwargs: Keywords
    ) -> object:
        job = self._job
        watch = job.watch
        if not watch.on or state.busy or is_tracing() or _transform() is not None:
            return original(module, *args, **kwargs)
        stack = state.stack
        parent = stack[-1] if stack else None
        facts = self._facts_of(module)
        inner = job.settings.level == "module"
        edges: list[Edge] = []
        slots: list[Slot] = []
        versions: list[int] = []
        opened = OpenModule(-1, facts.path_id, facts.class_id, facts.path, watch.site(sys._getframe(2)), "", None)
        opened.outer = parent
        transmits = type(module) in MODULES_THAT_TRANSMIT
        call = opened.call = LiveCall(facts.series, 0, "module", facts.op, opened, opened.site, transmits)
        recompute = False
        first = -1
        if parent is None:
            state.end_quiet()
        with OwnCode(watch, facts.path or facts.op):
            # With our mode on, to ask a tensor for anything is a call of a torch function.
            task = _task()
            if job.has_gradients_to_come and task == -1:
                job.end_pass()
            call.in_backward = task != -1
            tensors = [item for item in args if isinstance(item, Tensor)]
            call.number, recompute = numbered(watch, facts.series, tensors, task)
            if parent is None and not recompute:
                self._look_at_data(facts.path or type(module).__name__, opened.site, args, kwargs)
            if inner:
                slots = watch.flatten("input", args, []) + watch.flatten_named("kwargs", kwargs, [])
                if torch.is_grad_enabled():
                    edges = edges_of(slots)
                versions = [version_of(tensor) for _, tensor in slots]
                first = _sequence()
        stack.append(opened)
        try:
            result: object = original(module, *args, **kwargs)
        except BaseException:
            self._gradients.forget_exits()
            raise
        finally:
            stack.pop()
        with OwnCode(watch, facts.path or facts.op):
            if parent is None and not recompute:
                job.control(job.tracker.end_model)
            if inner and first >= 0:
                self._look(call, module, slots, versions, result, edges, first)
                if parent is None:
                    self._gradients.forget_exits()
        return result

    def _look(
        self,
        call: LiveCall,
        module: Module,
        slots: list[Slot],
        versions: list[int],
        result: object,
        edges: list[Edge],
        first: int,
    ) -> None:
        """Look at what a module has given back, and have its gradients looked at."""
        job = self._job
        watch = job.watch
        outputs = watch.flatten_output(result)
        late = any(job.is_late(tensor) for _, tensor in outputs)
        (on_device if late else on_cpu).look_at_module(job, call, module, slots, versions, outputs)
        if any(tensor.requires_grad for _, tensor in outputs):
            backward = ModuleBackward(self._gradients, call, lone=not edges)
            self._gradients.watch(backward, watch.gradient_slots(outputs), edges, first)

    def _facts_of(self, module: Module) -> _ModuleFacts:
        path = self._path(module)
        kind = type(module)
        known = self._known.get((path, kind))
        if known is None:
            name = kind.__name__
            strings = self._job.recorder.strings
            head = f"Module.{path}.{name}" if path else f"Module.{name}"
            series = self._job.watch.series(head, "{head}.{phase}.{n}")
            known = _ModuleFacts(path, strings.id(path), strings.id(name), series, name.lower())
            self._known[path, kind] = known
        return known

    def _look_at_data(self, name: str, site: int, args: Arguments, kwargs: Keywords) -> None:
        """Look at what enters a root module."""
        job = self._job
        watch = job.watch
        job.control(job.tracker.new_pass)
        slots = watch.flatten("output", args, []) + watch.flatten_named("output.kwargs", kwargs, [])
        series = watch.series(f"Data.{name}")
        if slots:
            call = LiveCall(series, series.next(job.recorder.epoch), "data", "", None, site)
            late = any(job.is_late(tensor) for _, tensor in slots)
            (on_device if late else on_cpu).look_at_data(job, call, slots)


def _address(tensor: Tensor) -> int:
    try:
        return tensor.data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def _tensors(result: object) -> tuple[Tensor, ...]:
    if isinstance(result, Tensor):
        return (result,)
    if isinstance(result, dict):
        return _tensors(list(result.values()))
    found: tuple[Tensor, ...] = ()
    for item in result if isinstance(result, (list, tuple)) else ():
        found += _tensors(item) if isinstance(item, (Tensor, list, tuple, dict)) else ()
    return found
