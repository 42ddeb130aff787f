"""Where the guard stands: every API call and every module call; the nodes that they make are in guard_nodes.py.

It follows capture's names, but not its path: for a call whose results are finite nothing is described, keyed or written
down. The CPU's results are looked at on the spot; those of other devices leave their counts there (guard_late.py).
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from numscope.capture.interned import Series
from numscope.capture.torch.autograd.graph import edges_of
from numscope.capture.torch.guard.call_backward import hook
from numscope.capture.torch.guard.calls import OpenCall, OpenModule, Seen, key_of, version_of
from numscope.capture.torch.guard.device_log import MODULES_THAT_TRANSMIT
from numscope.capture.torch.guard.flags import is_finite
from numscope.capture.torch.guard.module_backward import ModuleBackward, attach
from numscope.capture.torch.levels.api import ApiMode, _same_name
from numscope.capture.torch.levels.compiled import is_tracing
from numscope.capture.torch.levels.function_names import Api, is_cast
from numscope.capture.torch.levels.modules import Module, Modules
from numscope.capture.torch.own_code import OwnCode
from numscope.capture.torch.thread import Open, State

Tensor = torch.Tensor
_sequence = torch._C._autograd._get_sequence_nr
_task = torch._C._current_graph_task_id
_transform = (
    torch._C._functorch.peek_interpreter_stack
)  # vmap, grad …: what they give back is looked at, not the inside


class GuardMode(ApiMode):
    """Sees each call of a torch function, and looks at what comes out."""

    def __init__(self, guard: Any) -> None:
        super().__init__(guard.watch)
        self._guard = guard

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
        return watch_call(self._guard, api, work, args, kwargs, sys._getframe(1))


class WriteMode(ApiMode):
    """At module level, on a device: only sees to it that nothing is overwritten before it was looked at."""

    def __init__(self, guard: Any) -> None:
        super().__init__(guard.watch)
        self._late = guard.late

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
        place = (outer.module, outer.module_class, outer.path) if outer else (-1, -1, "")
        stack.append(Open(-1, *place, -1, api.op, None))
        try:
            return self._inside(api, func, args, kwargs)
        finally:
            stack.pop()


def _before_writing(late: Any, api: Api, args: Any, kwargs: Any) -> None:
    """Look at what waits, where a call is about to write to it, or may do so without a word."""
    if "out" in kwargs or api.foreign:
        late.launch()
    elif api.overwrites:
        late.before_write(args[0] if args else None)


def watch_call(guard: Any, api: Api, work: Any, args: Any, kwargs: Any, frame: Any) -> Any:
    """Do the work of a call, and look at its results."""
    watch = guard.watch
    state = watch.thread.here
    stack = state.stack
    parent = stack[-1] if stack else None
    # What an in-place call was given can't be looked at afterwards.
    clean, saved = True, None
    first = -1
    edges: list[Any] = []
    try:
        task = _task()
        if guard.leaves and task == -1:
            guard.end_pass()
        if (api.may_write or kwargs) and guard.late.waiting:
            _before_writing(guard.late, api, args, kwargs)
        series = watch.series(api.head)
        tensors = [item for item in args if isinstance(item, Tensor)]
        number, recompute = numbered(watch, series, tensors, task)
        seen = Seen(series, number, "api", api.op, parent, watch.site(frame), api.transmits, task != -1)
        versions = [version_of(item) for item in tensors]
        if api.overwrites and tensors:
            if guard.is_late(tensors[0]):
                guard.later.before_write(tensors[0])
            else:
                clean = tensors[0] is state.last or _was_finite(watch, tensors[0])
                saved = guard.now.save(tensors[0])
        if torch.is_grad_enabled():
            edges = [
                (index, item.grad_fn, item.output_nr, item)
                for index, item in enumerate(args)
                if isinstance(item, Tensor) and item.requires_grad
            ]
            first = _sequence()
    except Exception as error:
        watch.fault(api.head, error)
        return work()
    if api.composite:
        path = parent.path if parent else ""
        module, module_class = (parent.module, parent.module_class) if parent else (watch.no_text, watch.no_text)
        opened = OpenCall(-1, module, module_class, path, seen.site, api.op, None)
        opened.seen, opened.outer = seen, parent
        stack.append(opened)
        try:
            result = work()
        finally:
            stack.pop()
    else:
        result = work()
    try:
        if type(result) is Tensor:
            outputs: Any = (result,)
        elif result is None:
            outputs = tuple(t for t, version in zip(tensors, versions) if version_of(t) != version)
        else:
            outputs = _tensors(result)
        if not outputs:
            if not recompute:
                series.give_back(number)
            return result
        if not outputs[0].requires_grad:
            seen.aside = seen.at_once = not (stack and isinstance(stack[0], OpenModule))
        with OwnCode(watch):
            if api.uninitialized:
                for tensor in outputs:
                    guard.judge.marks.set(tensor, key_of(tensor), "blank")
                return result
            late = guard.waits or not outputs[0].is_cpu
            for tensor in tensors:
                late = late or not tensor.is_cpu
            if late:
                state.last = None
                fresh = guard.later.call(api, seen, args, kwargs, tensors, versions, outputs)
            else:
                fresh = guard.now.call(api, seen, args, kwargs, tensors, versions, outputs, clean, saved)
        if fresh and first >= 0 and outputs[0].requires_grad:
            hook(guard, seen, outputs, edges, first)
    except Exception as error:
        watch.fault(api.head, error)
    return result


def _was_finite(watch: Any, tensor: Tensor) -> bool:
    """Tell whether a tensor of the CPU that is about to be overwritten is finite."""
    with OwnCode(watch):
        finite = is_finite(tensor)
    return finite


def numbered(watch: Any, series: Series, tensors: list[Tensor], task: int) -> tuple[int, bool]:
    """Return a call's number, and whether it is a recomputation, which takes the number of the first execution."""
    inputs = [_place(item) for item in tensors[:2]]
    if task != -1 and torch.is_grad_enabled():
        found = watch.executions.find(series, inputs)
        return (found[0] if found else series.next(watch.recorder.epoch)), True
    number = series.next(watch.recorder.epoch)
    watch.executions.note(series, number, 0, inputs)
    return number, False


class GuardModules(Modules):
    """Knows the modules by path; looks at what enters the model, and at what modules give back."""

    def __init__(self, guard: Any, models: dict[str, Module]) -> None:
        self._guard = guard
        self._facts: dict[tuple[str, type], tuple[str, int, int, Series, str]] = {}
        super().__init__(guard.watch, models)

    def _watch_gradient(self, parameter: torch.nn.Parameter, path: str, name: str) -> None:
        """Gradients are looked at where the optimizer takes them."""

    def _record(self, original: Any, state: State, module: Module, args: Any, kwargs: Any) -> Any:
        guard = self._guard
        watch = guard.watch
        if not watch.on or state.busy or is_tracing() or _transform() is not None:
            return original(module, *args, **kwargs)
        stack = state.stack
        parent = stack[-1] if stack else None
        path, module_id, class_id, series, op = self._known(module)
        inner = guard.settings.level == "module"
        edges: list[Any] = []
        slots: list[Any] = []
        versions: list[int] = []
        opened = OpenModule(-1, module_id, class_id, path, watch.site(sys._getframe(2)), "", None)
        opened.outer = parent
        transmits = type(module) in MODULES_THAT_TRANSMIT
        seen = opened.seen = Seen(series, 0, "module", op, opened, opened.site, transmits)
        recompute = False
        first = -1
        if parent is None:
            state.end_quiet()
        with OwnCode(watch, path or op):
            # With our mode on, to ask a tensor for anything is a call of a torch function.
            task = _task()
            if guard.leaves and task == -1:
                guard.end_pass()
            seen.in_backward = task != -1
            tensors = [item for item in args if isinstance(item, Tensor)]
            seen.number, recompute = numbered(watch, series, tensors, task)
            if parent is None and not recompute:
                self._data(path or type(module).__name__, opened.site, args, kwargs)
            if inner:
                slots = watch.flatten("input", args, []) + watch.flatten_named("kwargs", kwargs, [])
                if torch.is_grad_enabled():
                    edges = edges_of(slots)
                versions = [version_of(tensor) for _, tensor in slots]
                first = _sequence()
        stack.append(opened)
        try:
            result = original(module, *args, **kwargs)
        except BaseException:
            guard.exits.clear()
            raise
        finally:
            stack.pop()
        with OwnCode(watch, path or op):
            if parent is None and not recompute:
                guard.control(guard.judge.end_model)
            if inner and first >= 0:
                self._look(seen, module, slots, versions, result, edges, first)
                if parent is None:
                    guard.exits.clear()
        return result

    def _look(
        self, seen: Seen, module: Module, slots: Any, versions: list[int], result: Any, edges: list[Any], first: int
    ) -> None:
        """Look at what a module has given back, and have its gradients looked at."""
        guard = self._guard
        watch = guard.watch
        outputs = watch.flatten_output(result)
        late = any(guard.is_late(tensor) for _, tensor in outputs)
        (guard.later if late else guard.now).module(seen, module, slots, versions, outputs)
        if first >= 0 and any(tensor.requires_grad for _, tensor in outputs):
            call = ModuleBackward(guard, seen, lone=not edges)
            attach(guard, call, watch.gradient_slots(outputs), edges, first)

    def _known(self, module: Module) -> tuple[str, int, int, Series, str]:
        """Return a module's path, the numbers of path and class, the series of its calls, and its class as an operator."""
        path = self._path(module)
        kind = type(module)
        found = self._facts.get((path, kind))
        if found is None:
            name = kind.__name__
            strings = self._guard.recorder.strings
            head = f"Module.{path}.{name}" if path else f"Module.{name}"
            series = self._guard.watch.series(head, "{head}.{phase}.{n}")
            found = self._facts[path, kind] = (path, strings.id(path), strings.id(name), series, name.lower())
        return found

    def _data(self, name: str, site: int, args: Any, kwargs: Any) -> None:
        """Look at what enters a root module."""
        guard = self._guard
        watch = guard.watch
        guard.control(guard.judge.new_pass)
        slots = watch.flatten("output", args, []) + watch.flatten_named("output.kwargs", kwargs, [])
        series = watch.series(f"Data.{name}")
        if slots:
            seen = Seen(series, series.next(guard.recorder.epoch), "data", "", None, site)
            late = any(guard.is_late(tensor) for _, tensor in slots)
            (guard.later if late else guard.now).data(seen, slots)


def _place(tensor: Tensor) -> int:
    try:
        return tensor.data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def _tensors(result: Any) -> tuple[Tensor, ...]:
    if isinstance(result, Tensor):
        return (result,)
    if isinstance(result, (list, tuple)):
        found: tuple[Tensor, ...] = ()
        for item in result:
            found += _tensors(item) if isinstance(item, (Tensor, list, tuple, dict)) else ()
        return found
    if isinstance(result, dict):
        return _tensors(list(result.values()))
    return ()
