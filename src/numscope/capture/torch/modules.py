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
from numscope.capture.torch.backward import BackwardCall, Targets, attach, sequence
from numscope.capture.torch.compiled import is_tracing
from numscope.capture.torch.tensors import version_of
from numscope.capture.torch.thread import Open, Undo
from numscope.capture.torch.watch import Watch

Module = torch.nn.Module
_task = torch._C._current_graph_task_id
_NormBase = torch.nn.modules.batchnorm._NormBase


class Modules:
    """Knows the modules of the captured models by path, and records their calls."""

    def __init__(self, watch: Watch, models: dict[str, Module]) -> None:
        self._watch = watch
        self._paths: dict[int, tuple[weakref.ref[Module], str]] = {}
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
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in self._parameters:
                    self._parameters[id(parameter)] = (path, name)
                    if self._installed:
                        self._watch_gradient(parameter, path, name)

    def known(self) -> dict[str, Module]:
        """Return the modules that are alive, by path; of one that stands in several places, the first."""
        alive = ((path, found()) for found, path in list(self._paths.values()))
        return {path: module for path, module in alive if module is not None}

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
            if mode is None or thread.entered or thread.compiled or not watch.on:
                return record(original, module, args, kwargs)
            thread.entered = True
            try:
                with mode:
                    return record(original, module, args, kwargs)
            finally:
                thread.entered = False

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
        stack = self._watch.thread.stack
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

    def _record(self, original: Any, module: Module, args: Any, kwargs: Any) -> Any:
        watch = self._watch
        state = watch.thread.__dict__
        if not watch.on or not watch.forward_on or state["busy"] or is_tracing():
            return original(module, *args, **kwargs)
        if state["quiet"] is not None and not state["stack"]:  # an optimizer's step that raised has not told its end
            watch.thread.end_quiet()
            watch.tensors.unsettle_all()
        call = _ModuleCall(watch, module)
        opened = None
        guard = state["guard"]
        state["busy"] = True
        guard.__enter__()
        try:
            opened = call.before(self._path(module), state, args, kwargs, sys._getframe(2), self._backwards)
        except Exception as error:
            watch.fault("module", error)
        finally:
            guard.__exit__(None, None, None)
            state["busy"] = False
        if opened is None:
            return original(module, *args, **kwargs)
        stack = state["stack"]
        stack.append(opened)
        try:
            result = original(module, *args, **kwargs)
        except BaseException as error:
            call.raised(error)
            raise
        finally:
            stack.pop()
        state["busy"] = True
        guard.__enter__()
        try:
            call.after(result)
        except Exception as error:
            watch.fault("module", error)
        finally:
            guard.__exit__(None, None, None)
            state["busy"] = False
        return result

    def _watch_gradient(self, parameter: torch.nn.Parameter, path: str, name: str) -> None:
        watch = self._watch
        if not (watch.settings.parameters and watch.record_backward) or not parameter.requires_grad:
            return
        slot = watch.slot_id("parameters_grad", name)

        backwards = self._backwards

        def accumulated(tensor: torch.Tensor) -> None:
            state = watch.thread.__dict__
            if not watch.on or state["busy"]:
                return
            call = backwards.get(path)
            if call is None or not call.wanted:
                return
            state["busy"] = True
            guard = state["guard"]
            guard.__enter__()
            try:
                if (gradient := tensor.grad) is not None:
                    watch.show(call.begin(), slot, gradient, call.name)
            except Exception as error:
                watch.fault("parameters_grad", error)
            finally:
                guard.__exit__(None, None, None)
                state["busy"] = False

        if parameter.is_leaf:
            self._handles.append(parameter.register_post_accumulate_grad_hook(accumulated))


class _ModuleCall:
    """One call of a module, from before to after."""

    __slots__ = (
        "_backward",
        "_buffers",
        "_first",
        "_in_scope",
        "_module",
        "_name",
        "_order",
        "_recorded",
        "_targets",
        "_watch",
    )

    def __init__(self, watch: Watch, module: Module) -> None:
        self._watch = watch
        self._module = module
        self._recorded = watch.settings.level != "api"

    def before(
        self, path: str, state: dict[str, Any], args: Any, kwargs: Any, frame: Any, backwards: dict[str, BackwardCall]
    ) -> Open:
        """Record the call with its inputs, parameters and buffers as they are before it."""
        watch = self._watch
        recorder = watch.recorder
        stack = state["stack"]
        parent = stack[-1] if stack else None
        class_name = type(self._module).__name__
        module, module_class, series = watch.modules.get((path, class_name)) or self._learn(path, class_name)
        site = watch.site_in(stack, frame)
        if not self._recorded:
            order = parent.order if parent else -1
            return Open(order, module, module_class, path, site, "", parent.backward if parent else None)
        positional: list[tuple[str, Any]] = []
        named: list[tuple[str, Any]] = []
        slots = watch.flatten("input", args, positional)
        if kwargs:
            slots += watch.flatten_named("kwargs", kwargs, named)
        recompute = _task() != -1 and torch.is_grad_enabled()
        if parent is None and not recompute and watch.record_forward:
            self._data(path, class_name, slots, site)
            if watch.settings.parameters and not watch.asks:
                watch.measure_ahead(self._module)
        self._order = order = next(recorder.orders)
        rows = watch.rows(order, slots) if watch.record_forward else []
        number, first_order = (watch.executions.find(series, rows[2::4]) if recompute else None) or (-1, -1)
        if number < 0:
            number = series.next(recorder.epoch)
            watch.executions.note(series, number, order, rows[2::4])
        self._name = name = series.name(number)
        this = Open(order, module, module_class, path, site, "", None)
        self._in_scope = in_scope = not watch.asks or watch.in_scope(name, this, "module")
        this.backward = self._backward = BackwardCall(
            watch, series.name(number, "backward"), watch.module_kind, module, module_class, order, site,
            parent.backward if parent else None,
        )  # fmt: skip
        self._backward.wanted = in_scope
        if self._module._parameters or self._module._modules:  # a loss beside the model takes none of its gradients
            known = backwards.get(path) if recompute else None
            if known is None or not known.attached:  # a checkpoint that is not reentrant keeps its first graph
                backwards[path] = self._backward
        if in_scope and watch.record_forward:
            number = state["number"]
            watch.call_row((
                order, name, watch.module_kind, module, module_class, watch.forward_phase, parent.order if parent else -1,
                first_order, watch.arguments(positional, named), site, recompute, -1,
                number if number >= 0 else watch.thread_number(),
            ))  # fmt: skip
            if watch.keeps_some:
                watch.keep(slots, rows, name)
            watch.add(rows)
            if watch.settings.parameters:
                watch.record(order, self._state(), name)
        buffers = self._module._buffers
        self._buffers = (
            {name: version_of(item) for name, item in buffers.items() if item is not None} if buffers else None
        )
        self._targets = None
        if watch.record_backward and torch.is_grad_enabled():
            self._targets = Targets(watch, slots)
            self._first = sequence()
        return this

    def _learn(self, path: str, class_name: str) -> tuple[int, int, Series]:
        """Return the numbers of a module's path and class, and the series of its calls."""
        watch = self._watch
        strings = watch.recorder.strings
        head = f"Module.{path}.{class_name}" if path else f"Module.{class_name}"
        series = watch.series(head, "{head}.{phase}.{n}")
        found = watch.modules[path, class_name] = (strings.id(path), strings.id(class_name), series)
        return found

    def _state(self) -> list[tuple[int, torch.Tensor]]:
        watch = self._watch
        found: list[tuple[int, torch.Tensor]] = []
        for name, parameter in self._module._parameters.items():
            if parameter is not None:
                found.append((watch.slot_id("parameters", name), parameter))
        for name, buffer in self._module._buffers.items():
            if buffer is not None:
                found.append((watch.slot_id("buffers", name), buffer))
        return found

    def _data(self, path: str, class_name: str, slots: list[tuple[int, torch.Tensor]], site: int) -> None:
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

    def after(self, result: Any) -> None:
        """Record the outputs, and watch for the gradients."""
        if not self._recorded:
            return
        watch = self._watch
        outputs = watch.flatten_output(result)
        if self._in_scope and watch.record_forward:
            shown = outputs
            if self._module._buffers:
                # Normalisations write their running statistics without telling the version counter.
                statistics = isinstance(self._module, _NormBase) and self._module.training
                before = self._buffers or {}
                written = []
                for name, buffer in self._module._buffers.items():
                    if buffer is not None and (statistics or version_of(buffer) != before.get(name)):
                        if statistics:
                            watch.tensors.distrust(buffer)
                        written.append((watch.slot_id("output.buffers", name), buffer))
                shown = outputs + written
            watch.record(self._order, shown, self._name)
        if self._targets is not None and self._in_scope:
            for _, tensor in outputs:
                if tensor.requires_grad:
                    self._backward.attached = True
                    attach(watch, self._backward, outputs, self._targets, self._first)
                    break
        if watch.scope.stateful:
            watch.ended(self._name)
        watch.flush_if_full()

    def raised(self, error: BaseException) -> None:
        """Nothing more is known of a call that raised; its row and its inputs are recorded already."""
        if self._recorded and type(error).__name__ != "_StopRecomputationError":  # how checkpoint ends a recomputation
            self._watch.recorder.skip(f"module raised {type(error).__name__}")
