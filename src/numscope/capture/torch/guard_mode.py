"""Where the guard stands: every API call, every module call, and the autograd nodes that they make.

It follows capture's names, but not its path: for a call whose results are finite nothing is described, keyed or written
down. The CPU's results are looked at on the spot; those of other devices leave their counts there (guard_late.py).
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch

from numscope.capture.recorder import Series
from numscope.capture.torch.api import ApiMode, _same_name
from numscope.capture.torch.backward import edges_of
from numscope.capture.torch.compiled import is_tracing
from numscope.capture.torch.flags import is_finite
from numscope.capture.torch.guard_calls import Entry, OpenModule, Seen
from numscope.capture.torch.guard_edges import ModuleBackward, attach
from numscope.capture.torch.modules import Module, Modules
from numscope.capture.torch.names import Api
from numscope.capture.torch.watch import Open

Tensor = torch.Tensor
_LEAF = 2**64 - 1  # the sequence number of AccumulateGrad
_KEY = "numscope.guard"
_IN = [f"input.{index}" for index in range(64)]
_OUT = [f"output.{index}" for index in range(64)]
_sequence = torch._C._autograd._get_sequence_nr
_task = torch._C._current_graph_task_id


class GuardMode(ApiMode):
    """Sees each call of a torch function, and looks at what comes out."""

    def __init__(self, guard: Any) -> None:
        super().__init__(guard.watch)
        self._guard = guard

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        watch = self._watch
        api = self._table[func]
        thread = watch.thread
        if api.transparent and not thread.busy:
            return self._inside(api, func, args, kwargs)
        if api.silent or thread.busy or not watch.on or is_tracing():
            return func(*args, **kwargs)
        stack = thread.stack
        if stack and stack[-1].op and _same_name(stack[-1].op, api.op):
            return func(*args, **kwargs)  # the composite itself, not a call inside it
        work = (lambda: self._inside(api, func, args, kwargs)) if api.composite else (lambda: func(*args, **kwargs))
        return watch_call(self._guard, api, work, args, kwargs, sys._getframe(1))


def watch_call(guard: Any, api: Api, work: Any, args: Any, kwargs: Any, frame: Any) -> Any:
    """Do the work of a call, and look at its results."""
    watch = guard.watch
    thread = watch.thread
    stack = thread.stack
    parent = stack[-1] if stack else None
    if guard.leaves and _task() == -1:
        guard.end_pass()
    series = watch.series(api.head)
    tensors = [item for item in args if isinstance(item, Tensor)]
    number, recompute = numbered(watch, series, tensors)
    seen = Seen(series, number, "api", api.op, parent, watch.site(frame))
    versions = [_version(item) for item in tensors]
    # What an in-place call was given can't be looked at afterwards.
    clean = not api.overwrites or not tensors or tensors[0] is thread.last or guard.was_finite(tensors[0])
    first = -1
    edges: list[Any] = []
    if torch.is_grad_enabled():
        edges = [
            (index, item.grad_fn, item.output_nr, item)
            for index, item in enumerate(args)
            if isinstance(item, Tensor) and item.requires_grad
        ]
        first = _sequence()
    if api.composite:
        path = parent.path if parent else ""
        module, module_class = (parent.module, parent.module_class) if parent else (watch.no_text, watch.no_text)
        stack.append(Open(-1, module, module_class, path, seen.site, api.op, None))
        try:
            result = work()
        finally:
            stack.pop()
    else:
        result = work()
    if type(result) is Tensor:
        outputs: Any = (result,)
    elif result is None:
        outputs = tuple(t for t, version in zip(tensors, versions) if _version(t) != version)
    else:
        outputs = _tensors(result)
    if not outputs:
        if not recompute:
            series.give_back(number)
        return result
    fresh = guard.after(api, seen, args, kwargs, tensors, versions, outputs, clean)
    if fresh and first >= 0 and outputs[0].requires_grad:
        hook(guard, seen, outputs, edges, first)
    return result


def numbered(watch: Any, series: Series, tensors: list[Tensor]) -> tuple[int, bool]:
    """Return a call's number, and whether it is a recomputation, which takes the number of the first execution."""
    inputs = [(0, _place(item), 0) for item in tensors[:2]]
    if _task() != -1 and torch.is_grad_enabled():
        found = watch.executions.find(series, inputs)
        return (found[0] if found else series.next(watch.recorder.epoch)), True
    number = series.next(watch.recorder.epoch)
    watch.executions.note(series, number, 0, inputs)
    return number, False


def hook(guard: Any, seen: Seen, outputs: Any, edges: list[Any], first: int) -> None:
    """Watch the nodes that a call made: those numbered from `first` on that no inner call has."""
    pending = []
    for tensor in outputs:
        node = tensor.grad_fn
        if node is not None and first <= node._sequence_nr() < _LEAF:
            pending.append(node)
    while pending:
        node = pending.pop()
        metadata = node.metadata
        if metadata.get(_KEY) is guard:
            continue
        metadata[_KEY] = guard
        slots: list[int] = []
        leaves: dict[int, Any] = {}
        for following, number in node.next_functions:
            slot = -1
            if following is not None:
                sequence = following._sequence_nr()
                if sequence == _LEAF:
                    variable = following.variable
                    slot = next((index for index, _, _, leaf in edges if leaf is variable), -1)
                    if guard.is_late(variable):
                        leaves[len(slots)] = variable
                else:
                    for index, source, output, _ in edges:
                        if source is following and output == number:
                            slot = index
                            break
                    else:
                        if sequence >= first:
                            pending.append(following)
            slots.append(slot)
        node.register_hook(NodeHook(guard, seen, slots, leaves))


class NodeHook:
    """Looks at the gradients that leave one node."""

    __slots__ = ("_guard", "_leaves", "_seen", "_slots")

    def __init__(self, guard: Any, seen: Seen, slots: list[int], leaves: dict[int, Any]) -> None:
        self._leaves = leaves
        self._guard = guard
        self._seen = seen
        self._slots = slots

    def __call__(self, outgoing: tuple[Any, ...], incoming: tuple[Any, ...]) -> None:
        guard = self._guard
        if not guard.watch.on or guard.watch.thread.busy:
            return
        with torch._C.DisableTorchFunction():  # this runs in the user's thread, with our mode on
            self._look(incoming, outgoing)

    def _look(self, incoming: tuple[Any, ...], outgoing: tuple[Any, ...]) -> None:
        guard = self._guard
        bad = False
        made = []
        for slot, gradient in zip(self._slots, outgoing):
            if gradient is not None:
                bad = bad or guard.waits or not gradient.is_cpu or not is_finite(gradient)
                made.append((slot, weakref.ref(gradient), _version(gradient)))
        if bad:
            names = [
                (_OUT[slot] if 0 <= slot < 64 else f"output.inner{index}", gradient)
                for index, (slot, gradient) in enumerate(zip(self._slots, outgoing))
                if gradient is not None and index not in self._leaves
            ]
            leaves = [
                (f"output.{max(self._slots[index], 0)}", variable)
                for index, variable in self._leaves.items()
                if outgoing[index] is not None
            ]
            given = [(_IN[min(i, 63)], gradient) for i, gradient in enumerate(incoming) if gradient is not None]
            guard.gradients(self._seen, given, names, leaves)
        taken = [(i, weakref.ref(g), _version(g)) for i, g in enumerate(incoming) if g is not None]
        guard.ring.add(Entry(self._seen, "backward", taken, made, 0))


class GuardModules(Modules):
    """Knows the modules by path; looks at what enters the model, and at what modules give back."""

    def __init__(self, guard: Any, models: dict[str, Module]) -> None:
        self._guard = guard
        super().__init__(guard.watch, models)

    def _watch_gradient(self, parameter: torch.nn.Parameter, path: str, name: str) -> None:
        """Gradients are looked at where the optimizer takes them."""

    def _record(self, original: Any, module: Module, args: Any, kwargs: Any) -> Any:
        guard = self._guard
        watch = guard.watch
        thread = watch.thread
        if not watch.on or thread.busy or is_tracing():
            return original(module, *args, **kwargs)
        stack = thread.stack
        parent = stack[-1] if stack else None
        if guard.leaves and _task() == -1:
            guard.end_pass()
        path = self._path(module)
        strings = watch.recorder.strings
        class_name = type(module).__name__
        head = f"Module.{path}.{class_name}" if path else f"Module.{class_name}"
        series = watch.series(head, "{head}.{phase}.{n}")
        number, recompute = numbered(watch, series, [item for item in args if isinstance(item, Tensor)])
        opened = OpenModule(-1, strings.id(path), strings.id(class_name), path, watch.site(sys._getframe(2)), "", None)
        seen = opened.seen = Seen(series, number, "module", class_name.lower(), opened, opened.site)
        if parent is None and not recompute:
            thread.end_quiet()
            guard.data(path or class_name, seen.site, args, kwargs)
        inner = guard.settings.level == "module"
        edges: list[Any] = []
        slots: list[Any] = []
        if inner:
            slots = watch.flatten("input", args, []) + watch.flatten_named("kwargs", kwargs, [])
            if torch.is_grad_enabled():
                edges = edges_of(slots)
        first = _sequence() if inner else -1
        versions = [_version(tensor) for _, tensor in slots]
        stack.append(opened)
        try:
            result = original(module, *args, **kwargs)
        finally:
            stack.pop()
        if inner:
            outputs = watch.flatten_output(result)
            guard.module(seen, module, slots, versions, outputs)
            if edges and any(tensor.requires_grad for _, tensor in outputs):
                attach(guard, ModuleBackward(guard, seen), watch.gradient_slots(outputs), edges, first)
        return result


def _place(tensor: Tensor) -> int:
    try:
        return tensor.data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def _version(tensor: Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:
        return -1


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
