"""The module level: every `nn.Module` call, its inputs, parameters, buffers and outputs.

`nn.Module.__call__` is replaced by one that records, while capture is on. Forward hooks would do for most, but they don't
see keyword arguments before the call, run before the user's own hooks, and miss interrupted calls.
"""

from __future__ import annotations

import functools
import sys
import weakref
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from numscope.capture.recording.interned import Series
from numscope.capture.recording.rows import tensors_of
from numscope.capture.torch.autograd.backward import BackwardCall
from numscope.capture.torch.autograd.graph import CallGraph
from numscope.capture.torch.identity.storages import version_of
from numscope.capture.torch.inputs import Inputs, Targets
from numscope.capture.torch.levels.compiled import is_tracing
from numscope.capture.torch.levels.function_names import Function
from numscope.capture.torch.levels.module_state import state_of, watch_gradient, written_by
from numscope.capture.torch.own_code import OwnCode
from numscope.capture.torch.patching import replace
from numscope.capture.torch.program import Attributes
from numscope.capture.torch.slots import Arguments, Keywords, Slot
from numscope.capture.torch.thread import Open, State, Undo
from numscope.capture.torch.watch import Watch

Module = torch.nn.Module
_task = torch._C._current_graph_task_id
_grad_is_on = torch.is_grad_enabled
_sequence = torch._C._autograd._get_sequence_nr


class ModulePath(NamedTuple):
    """A module, and where it is in the captured models."""

    module: weakref.ref[Module]
    path: str


class ModuleName(NamedTuple):
    """A module as its calls are recorded."""

    module: weakref.ref[Module]
    kind: type[Module]
    path: str
    path_id: int  # interned
    class_id: int
    series: Series  # of the names of its calls


class ParameterName(NamedTuple):
    """The module that has a parameter, and the parameter's name there."""

    path: str
    name: str


class BegunModule(NamedTuple):
    """A module's call that has begun."""

    open: Open
    wanted: bool  # it is in scope
    name: int
    backward: BackwardCall | None
    versions: dict[str, int | None] | None  # of its buffers
    targets: Targets | None  # where the gradients of its inputs will go
    first: int  # the sequence number of the first autograd node that can be its own


class Modules:
    """Knows the modules of the captured models by path, and records their calls."""

    __slots__ = (
        "_backwards",
        "_handles",
        "_installed",
        "_modules",
        "_parameters",
        "_paths",
        "_prefixes",
        "_roots",
        "_shows_state",
        "_watch",
        "attributes",
    )

    def __init__(self, watch: Watch, models: dict[str, Module]) -> None:
        self._watch = watch
        self.attributes = Attributes()  # of modules, for the program of the run
        self._shows_state = watch.settings.parameters
        self._paths: dict[int, ModulePath] = {}
        self._modules: dict[int, ModuleName] = {}
        self._parameters: dict[int, ParameterName] = {}  # by the parameter's id
        self._installed = False
        self._handles: list[RemovableHandle] = []  # of the hooks on parameters, while installed
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
            self._paths[id(module)] = ModulePath(weakref.ref(module), path)
            self._modules.pop(id(module), None)
            if self._watch.settings.stacks:
                self.attributes.add(path, module)
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in self._parameters:
                    self._parameters[id(parameter)] = ParameterName(path, name)
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

    def install(self, mode: TorchFunctionMode | TorchDispatchMode | None) -> Undo:
        """Replace `nn.Module.__call__`; return what puts it back.

        A mode is on in the thread that started the capture; in another thread it is on inside the outermost module.
        """
        original = Module.__call__
        record = self._record
        watch = self._watch
        thread = watch.thread

        def __call__(module: Module, *args: object, **kwargs: object) -> Any:
            state: State = thread.here
            if mode is None or state.entered or state.region is not None or not watch.on:
                return record(original, state, module, args, kwargs)
            thread.here.entered = True
            try:
                with mode:
                    return record(original, state, module, args, kwargs)
            finally:
                thread.here.entered = False

        sites = self._watch.recorder.sites
        sites.boundary(__call__.__code__)
        functools.update_wrapper(
            __call__, original
        )  # by the name, Dynamo knows that no frame of the user's is entered yet
        sites.boundary(Module._call_impl.__code__)  # what lies between the two is torch's, and always the same
        restore = replace(Module, "__call__", __call__)
        self._installed = True
        for found, path in list(self._paths.values()):
            for name, parameter in found()._parameters.items() if found() is not None else ():  # type: ignore[union-attr]
                known = ParameterName(path, name)
                if parameter is not None and self._parameters.setdefault(id(parameter), known) == known:
                    self._watch_gradient(parameter, path, name)

        def undo() -> None:
            self._installed = False
            restore()
            for handle in self._handles:
                handle.remove()
            self._handles.clear()

        return undo

    def _path(self, module: Module) -> str:
        found = self._paths.get(id(module))
        if found is not None and found.module() is module:
            return found.path
        stack = self._watch.thread.here.stack
        if stack:  # made while the model runs
            path = f"{stack[-1].path}.{type(module).__name__}" if stack[-1].path else type(module).__name__
            self._paths[id(module)] = ModulePath(weakref.ref(module), path)
            return path
        for child in module.children():  # a wrapper around a model that is known: compiled, distributed
            known = self._paths.get(id(child))
            if known is not None and known.module() is child and known.path in self._prefixes:
                self._paths[id(module)] = ModulePath(weakref.ref(module), known.path)
                return known.path
        # A loss or an activation has nothing whose name could be mistaken for another's.
        is_plain = not (module._modules or module._parameters or module._buffers)
        prefix = "" if self._roots == 0 or is_plain else f"{type(module).__name__}{self._roots}"
        self.register(module, prefix)
        return prefix

    def _learn(self, module: Module) -> ModuleName:
        """Name a module that was not called before, or is of another class since."""
        watch = self._watch
        path = self._path(module)
        kind = type(module)
        name = kind.__name__
        text = watch.recorder.strings.id
        series = watch.series(f"Module.{path}.{name}" if path else f"Module.{name}", "{head}.{phase}.{n}")
        known = ModuleName(weakref.ref(module), kind, path, text(path), text(name), series)
        self._modules[id(module)] = known
        return known

    def _record(
        self, original: Function, state: State, module: Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Any:
        watch = self._watch
        if not (watch.on and watch.forward_on) or state.busy or is_tracing():
            return original(module, *args, **kwargs)
        if state.region is not None and isinstance(
            module, GraphModule
        ):  # the region's graph: none of the user's modules
            return original(module, *args, **kwargs)
        if state.quiet is not None and not state.stack:  # an optimizer's step that raised has not told its end
            watch.thread.here.end_quiet()
            watch.tensors.remeasure_everything()
        begun: BegunModule | None = None
        with OwnCode(watch, "module"):
            begun = self._begin(state, module, args, kwargs, sys._getframe(2))
        if begun is None:
            return original(module, *args, **kwargs)
        stack = state.stack
        stack.append(begun.open)
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
                self._end(module, begun, result)
        return result

    def _begin(
        self, state: State, module: Module, args: Arguments, kwargs: Keywords, frame: FrameType | None
    ) -> BegunModule:
        """Record a call with its inputs, parameters and buffers as they are before it."""
        watch = self._watch
        recorder = watch.recorder
        if watch.asks:
            watch.do_first()
        stack = state.stack
        parent = stack[-1] if stack else watch.outside
        known = self._modules.get(id(module))
        if known is None or known.module() is not module or known.kind is not type(module):
            known = self._learn(module)
        path, module_id, class_id = known.path, known.path_id, known.class_id
        site = watch.intern(frame, parent.site) if watch.stacks else -1
        if not watch.records_modules:
            this = Open(parent.order, module_id, class_id, path, site, "", parent.backward)
            return BegunModule(this, False, -1, None, None, None, -1)
        recompute = _task() != -1 and _grad_is_on()
        is_root = not (stack or recompute) and watch.record_forward
        inputs = Inputs(watch)
        if is_root:
            inputs.find(watch, args, kwargs)
            self._record_data(path, type(module).__name__, inputs.slots, site)
            if watch.settings.parameters and not watch.asks:
                watch.measure_ahead(module)
            order = next(recorder.orders)
            inputs.measure(watch, order)
        else:
            order = next(recorder.orders)
            inputs.take(watch, order, args, kwargs)
        number = first_order = -1
        if recompute:
            number, first_order = watch.executions.find(known.series, tensors_of(inputs.rows)) or (-1, -1)
        if number < 0:
            number = known.series.next(recorder.epoch)
            watch.executions.note(known.series, number, order, tensors_of(inputs.rows))
        name, backward_name = known.series.name(number), known.series.name(number, "backward")
        row = watch.call_row(
            order,
            name,
            watch.module_kind,
            module_id,
            class_id,
            watch.forward_phase,
            parent=parent.order,
            forward=first_order,
            arguments=watch.arguments(inputs.positional, inputs.named),
            stack=site,
            recompute=recompute,
        )
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
            before = self._backwards.get(path) if recompute else None
            if before is None or not before.attached:  # a checkpoint that is not reentrant keeps its first graph
                self._backwards[path] = backward
        if wanted and watch.record_forward:
            recorder.call(row)
            if watch.keeps_some:
                watch.keep(inputs.slots, inputs.rows, name)
            watch.add(inputs.rows)
            if self._shows_state and (parameters or buffers):
                watch.record(order, state_of(watch, parameters, buffers), name)
        versions = None
        if buffers:
            versions = {name: version_of(item) for name, item in buffers.items() if item is not None}
        return BegunModule(this, wanted, name, backward, versions, inputs.targets, _sequence())

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
        row = watch.call_row(
            order, name, watch.kinds["data"], watch.no_text, watch.no_text, watch.phases["input"], stack=site
        )
        recorder.call(row)
        as_output = []
        for slot, tensor in slots:
            group, _, tail = recorder.strings[slot].partition(".")
            place = tail if group == "input" else f"{group}.{tail}"
            as_output.append(Slot(watch.slot_id("output", place), tensor))
        watch.record(order, as_output, name)

    def _watch_gradient(self, parameter: torch.nn.Parameter, path: str, name: str) -> None:
        handle = watch_gradient(self._watch, self._backwards, parameter, path, name)
        if handle is not None:
            self._handles.append(handle)

    def _end(self, module: Module, begun: BegunModule, result: object) -> None:
        """Record the outputs of a call, and watch for the gradients."""
        watch = self._watch
        order, name, backward = begun.open.order, begun.name, begun.backward
        outputs = watch.flatten_output(result)
        if begun.wanted:
            if watch.record_forward:
                has_buffers = module.__dict__.get("_buffers", True)
                written = written_by(watch, module, begun.versions or {}) if has_buffers else []
                watch.record(order, outputs + written, name)
            targets = begun.targets if any(tensor.requires_grad for _, tensor in outputs) else None
            if targets is not None and backward is not None:
                backward.attached = True
                CallGraph(watch, backward, targets, begun.first).attach(outputs)
        if watch.scope.stateful:
            watch.ended(name)
        if watch.keeps_some or len(watch.recorder.slot_rows) > watch.recorder.full:
            watch.flush_if_full()
