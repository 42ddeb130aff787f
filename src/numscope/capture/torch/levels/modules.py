"""The module level: every `nn.Module` call, its inputs, parameters, buffers and outputs.

`nn.Module.__call__` is replaced by one that records, while capture is on. Forward hooks would do for most, but they don't
see keyword arguments before the call, run before the user's own hooks, and miss interrupted calls.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch

from numscope.capture.interned import Series
from numscope.capture.torch.autograd.backward import BackwardCall
from numscope.capture.torch.autograd.graph import attach, attach_one
from numscope.capture.torch.identity.storages import version_of
from numscope.capture.torch.inputs import Targets, aim, take, take_state
from numscope.capture.torch.levels.compiled import is_tracing
from numscope.capture.torch.levels.module_state import state_of, watch_gradient, written_by
from numscope.capture.torch.own_code import OwnCode
from numscope.capture.torch.slots import POSITIONS, Slot
from numscope.capture.torch.thread import Open, State, Undo
from numscope.capture.torch.watch import Watch

Module = torch.nn.Module
_task = torch._C._current_graph_task_id
_grad_is_on = torch.is_grad_enabled
_sequence = torch._C._autograd._get_sequence_nr
_Tensor = torch.Tensor
# A module as its calls are recorded: itself, its class, its path, the numbers of path and class, the names of its calls.
Facts = tuple[weakref.ref[Module], type, str, int, int, Series]
# A call that has begun: what is open, whether it is in scope, its name, its backward part, the versions of its buffers, where
# the gradients of its inputs will go, and the first node that is its own.
Begun = tuple[Open, bool, int, BackwardCall | None, dict[str, int | None] | None, Targets | None, int]


class Modules:
    """Knows the modules of the captured models by path, and records their calls."""

    __slots__ = (
        "_backwards", "_handles", "_installed", "_modules", "_parameters", "_paths", "_prefixes", "_roots", "_shows_state",
        "_watch",
    )  # fmt: skip

    def __init__(self, watch: Watch, models: dict[str, Module]) -> None:
        self._watch = watch
        self._shows_state = watch.settings.parameters
        self._paths: dict[int, tuple[weakref.ref[Module], str]] = {}
        self._modules: dict[int, Facts] = {}
        self._parameters: dict[int, tuple[str, str]] = {}  # id of a parameter → module path, its name there
        self._installed = False
        self._handles: list[Any] = []  # of the hooks on parameters, while installed
        self._backwards: dict[str, BackwardCall] = {}
        self._roots = 0
        self._prefixes: set[str] = set()
        for prefix, model in models.items():
            self.register(model, prefix)

    def register(self, model: Module, prefix: str) -> None:
        """Learn the paths of a model's modules and watch its parameters' gradients."""
        self._roots += 1
        self._prefixes.add(prefix)
        for path, module in model.named_modules(prefix=prefix):
            self._paths[id(module)] = (weakref.ref(module), path)
            self._modules.pop(id(module), None)
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in self._parameters:
                    self._parameters[id(parameter)] = (path, name)
                    if self._installed:
                        self._watch_gradient(parameter, path, name)

    def known(self) -> dict[str, Module]:
        """Return the modules that are alive, by path; of one that stands in several places, the first."""
        alive = ((path, found()) for found, path in list(self._paths.values()))
        return {path: module for path, module in alive if module is not None}

    @property
    def named(self) -> int:
        """How many parameters have names; it grows with each that gets one, and none loses its own."""
        return len(self._parameters)

    def parameter_name(self, parameter: torch.Tensor) -> str | None:
        """Return the dotted name of a parameter, or None where it is no model's."""
        found = self._parameters.get(id(parameter))
        if found is None:
            return None
        path, name = found
        return f"{path}.{name}" if path else name

    def install(self, mode: Any) -> Undo:
        """Replace `nn.Module.__call__`; return what puts it back.

        A mode is on in the thread that started the capture; in another thread it is on inside the outermost module.
        """
        original = Module.__call__
        record = self._record
        watch = self._watch
        thread = watch.thread

        def __call__(module: Module, *args: Any, **kwargs: Any) -> Any:
            state: State = thread.here
            if mode is None or state.entered or state.compiled or not watch.on:
                return record(original, state, module, args, kwargs)
            thread.here.entered = True
            try:
                with mode:
                    return record(original, state, module, args, kwargs)
            finally:
                thread.here.entered = False

        sites = self._watch.recorder.sites
        sites.boundary(__call__.__code__)
        sites.boundary(Module._call_impl.__code__)  # what lies between the two is torch's, and always the same
        Module.__call__ = __call__  # type: ignore[method-assign]
        self._installed = True
        for found, path in list(self._paths.values()):
            for name, parameter in found()._parameters.items() if found() is not None else ():  # type: ignore[union-attr]
                if parameter is not None and self._parameters.setdefault(id(parameter), (path, name)) == (path, name):
                    self._watch_gradient(parameter, path, name)

        def undo() -> None:
            self._installed = False
            if Module.__call__ is __call__:
                Module.__call__ = original  # type: ignore[method-assign]
            for handle in self._handles:
                handle.remove()
            self._handles.clear()

        return undo

    def _path(self, module: Module) -> str:
        found = self._paths.get(id(module))
        if found is not None and found[0]() is module:
            return found[1]
        stack = self._watch.thread.here.stack
        if stack:  # made while the model runs
            path = f"{stack[-1].path}.{type(module).__name__}" if stack[-1].path else type(module).__name__
            self._paths[id(module)] = (weakref.ref(module), path)
            return path
        for child in module.children():  # a wrapper around a model that is known: compiled, distributed
            known = self._paths.get(id(child))
            if known is not None and known[0]() is child and known[1] in self._prefixes:
                self._paths[id(module)] = (weakref.ref(module), known[1])
                return known[1]
        # A loss or an activation has nothing whose name could be mistaken for another's.
        is_plain = not (module._modules or module._parameters or module._buffers)
        prefix = "" if self._roots == 0 or is_plain else f"{type(module).__name__}{self._roots}"
        self.register(module, prefix)
        return prefix

    def _learn(self, module: Module) -> Facts:
        """Return what is known of a module that was not called before, or is of another class since."""
        watch = self._watch
        path = self._path(module)
        kind = type(module)
        name = kind.__name__
        text = watch.recorder.strings.id
        series = watch.series(f"Module.{path}.{name}" if path else f"Module.{name}", "{head}.{phase}.{n}")
        found = self._modules[id(module)] = (weakref.ref(module), kind, path, text(path), text(name), series)
        return found

    def _record(self, original: Any, state: State, module: Module, args: Any, kwargs: Any) -> Any:
        watch = self._watch
        if not (watch.on and watch.forward_on) or state.busy or is_tracing():
            return original(module, *args, **kwargs)
        if state.quiet is not None and not state.stack:  # an optimizer's step that raised has not told its end
            watch.thread.here.end_quiet()
            watch.tensors.remeasure_everything()
        begun: Begun | None = None
        with OwnCode(watch, "module"):
            begun = self._begin(state, module, args, kwargs, sys._getframe(2))
        if begun is None:
            return original(module, *args, **kwargs)
        stack = state.stack
        stack.append(begun[0])
        try:
            result = original(module, *args, **kwargs)
        except BaseException as error:
            if watch.records_modules and type(error).__name__ != "_StopRecomputationError":  # how checkpoint ends one
                watch.recorder.skip(f"module raised {type(error).__name__}")  # its row and its inputs are there already
            raise
        finally:
            stack.pop()
        if watch.records_modules:
            with OwnCode(watch, "module"):
                end_module(watch, module, begun, result)
        return result

    def _begin(self, state: State, module: Module, args: Any, kwargs: Any, frame: Any) -> Begun:
        """Record a call with its inputs, parameters and buffers as they are before it."""
        watch = self._watch
        recorder = watch.recorder
        if watch.asks:
            watch.do_first()
        stack = state.stack
        parent = stack[-1] if stack else watch.outside
        facts = self._modules.get(id(module))
        if facts is None or facts[0]() is not module or facts[1] is not type(module):
            facts = self._learn(module)
        _, _, path, module_id, class_id, series = facts
        intern = watch.intern
        site = intern(frame, parent.site) if watch.stacks else -1
        if not watch.records_modules:
            this = Open(parent.order, module_id, class_id, path, site, "", parent.backward)
            return this, False, -1, None, None, None, -1
        recompute = _task() != -1 and _grad_is_on()
        is_root = not (stack or recompute) and watch.record_forward
        positional: list[tuple[str, Any]] = []
        named: list[tuple[str, Any]] = []
        slots: list[Slot] = []
        rows: list[int] = []
        targets: Targets | None = {} if watch.record_backward and _grad_is_on() else None
        if watch.calm and not is_root and len(args) <= POSITIONS:
            order = next(recorder.orders)
            take(watch, order, "input", args, watch.places, positional, rows, targets)
            if kwargs:
                take(watch, order, "kwargs", kwargs.values(), watch.keywords(kwargs), named, rows, targets)
        else:
            slots = watch.flatten("input", args, positional)
            if kwargs:
                slots += watch.flatten_named("kwargs", kwargs, named)
            if is_root:
                self._record_data(path, type(module).__name__, slots, site)
                if watch.settings.parameters and not watch.asks:
                    watch.measure_ahead(module)
            order = next(recorder.orders)
            if watch.record_forward:
                rows = watch.rows(order, slots)
            if targets is not None:
                aim(watch, targets, slots)
        number = first_order = -1
        if recompute:
            number, first_order = watch.executions.find(series, rows[2::4]) or (-1, -1)
        if number < 0:
            now = series.now
            number = next(now[1]) if now[0] == recorder.epoch and not now[2] else series.next(recorder.epoch)
            if watch.calm:
                watch.executions.log += (series, number, order, len(rows), rows)  # see `note`
            else:
                watch.executions.note(series, number, order, rows[2::4])
        try:
            name, backward_name = series.forward[number], series.backward[number]
        except IndexError:
            name, backward_name = series.name(number), series.name(number, "backward")
        thread = state.number
        if thread < 0:
            thread = watch.thread_number()
        row = (order, name, watch.module_kind, module_id, class_id, watch.forward_phase, parent.order, first_order,
               watch.arguments(positional, named) if positional or named else -1, site, recompute, -1, thread)  # fmt: skip
        backward = BackwardCall(watch, backward_name, row, order, parent.backward)
        this = Open(order, module_id, class_id, path, site, "", backward)
        wanted = True
        if watch.asks:
            backward.wanted = wanted = watch.in_scope(name, this, "module")
        parts = module.__dict__  # a module's own way to its attributes is a long one
        if "_parameters" not in parts:  # what torch.jit.trace has made
            parts = {name: getattr(module, name) for name in ("_parameters", "_buffers", "_modules")}
        parameters, buffers = parts["_parameters"], parts["_buffers"]
        if parameters or parts["_modules"]:  # a loss beside the model takes none of its gradients
            known = self._backwards.get(path) if recompute else None
            if known is None or not known.attached:  # a checkpoint that is not reentrant keeps its first graph
                self._backwards[path] = backward
        if wanted and watch.record_forward:
            watch.call_row(row)
            if watch.calm:
                if self._shows_state:
                    if parameters:
                        take_state(watch, order, parameters, watch.parameter_slots, rows)
                    if buffers:
                        take_state(watch, order, buffers, watch.buffer_slots, rows)
                recorder.slot_rows.extend(rows)
            else:
                if watch.keeps_some:
                    watch.keep(slots, rows, name)
                watch.add(rows)
                if self._shows_state and (parameters or buffers):
                    watch.record(order, state_of(watch, parameters, buffers), name)
        versions = None
        if buffers:
            versions = {name: version_of(item) for name, item in buffers.items() if item is not None}
        return this, wanted, name, backward, versions, targets, _sequence()

    def _record_data(self, path: str, class_name: str, slots: list[Slot], site: int) -> None:
        """Record the batch that enters a root module as a call of its own: data, before any computation."""
        watch = self._watch
        recorder = watch.recorder
        if not slots:
            return
        series = watch.series(f"Data.{path or class_name}")
        number = series.next(recorder.epoch)
        name = recorder.strings.id(f"{series.head}.{number}.input")
        if not watch.in_scope(name, None, "data", "input"):
            return
        order = recorder.order()
        recorder.call(
            order, name, watch.kinds["data"], watch.no_text, watch.no_text, watch.phases["input"], -1, -1, -1, site, False,
            -1, watch.thread_number(),
        )  # fmt: skip
        as_output = []
        for slot, tensor in slots:
            group, _, tail = recorder.strings[slot].partition(".")
            as_output.append((watch.slot_id("output", tail if group == "input" else f"{group}.{tail}"), tensor))
        watch.record(order, as_output, name)

    def _watch_gradient(self, parameter: torch.nn.Parameter, path: str, name: str) -> None:
        handle = watch_gradient(self._watch, self._backwards, parameter, path, name)
        if handle is not None:
            self._handles.append(handle)


def end_module(watch: Watch, module: Module, begun: Begun, result: Any) -> None:
    """Record the outputs of a call, and watch for the gradients."""
    this, wanted, name, backward, versions, targets, first = begun
    single = type(result) is _Tensor
    outputs: list[Slot] | None = None if single else watch.flatten_output(result)
    if wanted:
        if watch.record_forward:
            has_buffers = module.__dict__.get("_buffers", True)
            if has_buffers and (written := written_by(watch, module, versions or {})):
                watch.record(
                    this.order, (outputs if outputs is not None else [(watch.first_output, result)]) + written, name
                )
            elif single:
                watch.show(this.order, watch.first_output, result, name, False)
            elif outputs:
                watch.record(this.order, outputs, name)
        if targets is None or backward is None:
            pass
        elif outputs is None:
            if result.requires_grad:
                backward.attached = True
                if (node := result.grad_fn) is not None and node._sequence_nr() >= first:
                    attach_one(
                        watch, backward, (result.output_nr, backward, watch.first_gradient), node, targets, first
                    )
        else:
            for _, tensor in outputs:
                if tensor.requires_grad:
                    backward.attached = True
                    attach(watch, backward, outputs, targets, first)
                    break
    if watch.scope.stateful:
        watch.ended(name)
    recorder = watch.recorder
    if watch.keeps_some or len(recorder.slot_rows) > recorder.full:
        watch.flush_if_full()
