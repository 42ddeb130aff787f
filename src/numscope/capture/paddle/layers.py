"""The module level: every `paddle.nn.Layer` call, its inputs, parameters, statistics and outputs."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import paddle

from numscope.capture.paddle.gradients import BackwardCall, Gradients
from numscope.capture.paddle.own_code import OwnCode
from numscope.capture.paddle.watch import Open, Slot, Undo, Watch

Layer = paddle.nn.Layer

# Parameters whose gradients some capture has waited for: Paddle gives no way to take such a hook away, so each has one
# for good, and it asks who listens now.
_hooked: dict[int, weakref.ref[Any]] = {}
_listening: list[Layers] = []


class Layers:
    """Knows the layers of the captured models by path, and records their calls."""

    def __init__(self, watch: Watch, gradients: Gradients, models: dict[str, Any]) -> None:
        self._watch = watch
        self._gradients = gradients
        self._paths: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._parameters: dict[int, tuple[weakref.ref[Any], str, str]] = {}
        self._backwards: dict[str, BackwardCall] = {}
        self._roots = 0
        self.met: Callable[[Any], None] | None = None  # told of each layer that is registered
        for prefix, model in models.items():
            self.register(model, prefix)

    def register(self, model: Any, prefix: str) -> None:
        """Learn the paths of a model's layers and watch its parameters' gradients."""
        self._roots += 1
        for path, layer in model.named_sublayers(prefix=prefix, include_self=True):
            self._paths[id(layer)] = (weakref.ref(layer), path)
            if self.met is not None:
                self.met(layer)
            for name, parameter in layer._parameters.items():
                if parameter is not None and id(parameter) not in self._parameters:
                    self._parameters[id(parameter)] = (weakref.ref(parameter), path, name)
                    self._watch_gradient(parameter)

    def meet(self, met: Callable[[Any], None]) -> None:
        """Tell of each layer, now of those that are known and later of others."""
        self.met = met
        for reference, _ in list(self._paths.values()):
            if (layer := reference()) is not None:
                met(layer)

    def parameter_name(self, parameter: Any) -> str | None:
        """Return the dotted name of a parameter, or None where it is no known model's."""
        found = self._parameters.get(id(parameter))
        if found is None or found[0]() is not parameter:
            return None
        return ".".join(part for part in found[1:] if part)

    def install(self) -> Undo:
        """Replace `Layer.__call__`; return what puts it back."""
        original = Layer.__call__
        record = self._record

        def __call__(layer: Any, *args: Any, **kwargs: Any) -> Any:
            return record(original, layer, args, kwargs)

        self._watch.recorder.sites.boundary(__call__.__code__)
        Layer.__call__ = __call__
        _listening.append(self)

        def undo() -> None:
            if Layer.__call__ is __call__:
                Layer.__call__ = original
            if self in _listening:
                _listening.remove(self)

        return undo

    def _path(self, layer: Any) -> str:
        found = self._paths.get(id(layer))
        if found is not None and found[0]() is layer:
            return found[1]
        stack = self._watch.thread.stack
        if stack:  # made while the model runs
            path = f"{stack[-1].path}.{type(layer).__name__}" if stack[-1].path else type(layer).__name__
            self._paths[id(layer)] = (weakref.ref(layer), path)
            return path
        prefix = "" if self._roots == 0 or not layer.sublayers() else f"{type(layer).__name__}{self._roots}"
        self.register(layer, prefix)
        return prefix

    def _record(self, original: Any, layer: Any, args: Any, kwargs: Any) -> Any:
        watch, thread = self._watch, self._watch.thread
        if not watch.on or not watch.forward_on or thread.busy:
            return original(layer, *args, **kwargs)
        call = _LayerCall(watch, self._gradients, layer)
        opened = None
        with OwnCode(watch, "module"):
            if watch.begins():
                opened = call.before(self._path(layer), args, kwargs, sys._getframe(2), self._backwards)
        if opened is None:
            return original(layer, *args, **kwargs)
        thread.stack.append(opened)
        try:
            result = original(layer, *args, **kwargs)
        finally:
            thread.stack.pop()
        with OwnCode(watch, "module"):
            call.after(result)
        return result

    def _watch_gradient(self, parameter: Any) -> None:
        if not (self._watch.settings.parameters and self._watch.record_backward) or parameter.stop_gradient:
            return
        known = _hooked.get(id(parameter))
        if known is not None and known() is parameter:
            return
        reference = _hooked[id(parameter)] = weakref.ref(parameter)

        def accumulated(*_: Any) -> None:
            value = reference()
            for layers in list(_listening):
                if value is not None:
                    layers.accumulated(value)

        parameter._register_backward_hook(accumulated)

    def accumulated(self, parameter: Any) -> None:
        """Record a parameter's gradient, which has just been added up."""
        watch = self._watch
        found = self._parameters.get(id(parameter))
        if not watch.on or watch.thread.busy or found is None or parameter.grad is None:
            return
        call = self._backwards.get(found[1])
        if call is None or not watch.in_scope(call.name, *call.place, "module", "backward"):
            return
        with OwnCode(watch, "parameters_grad"):
            rows = watch.measure([(watch.slot_id(f"parameters_grad.{found[2]}"), parameter.grad)], call.name, True)
            watch.slots(call.begin(), rows)


class _LayerCall:
    """One call of a layer, from before to after."""

    def __init__(self, watch: Watch, gradients: Gradients, layer: Any) -> None:
        self._watch, self._gradients, self._layer = watch, gradients, layer
        self._recorded = watch.settings.level != "api"

    def before(self, path: str, args: Any, kwargs: Any, frame: Any, backwards: dict[str, BackwardCall]) -> Open:
        """Record the call with its inputs, parameters and buffers as they are before it."""
        watch = self._watch
        recorder = watch.recorder
        stack = watch.thread.stack
        parent = stack[-1] if stack else None
        class_name = type(self._layer).__name__
        module, module_class = recorder.strings.id(path), recorder.strings.id(class_name)
        site = watch.site(frame)
        if not self._recorded:
            return Open(
                parent.order if parent else -1,
                module,
                module_class,
                path,
                site,
                "",
                parent.backward if parent else None,
            )
        positional: list[tuple[str, Any]] = []
        named: list[tuple[str, Any]] = []
        self._inputs: list[Slot] = watch.flatten("input", args, positional)
        self._inputs += watch.flatten("kwargs", kwargs, named)
        if parent is None and watch.record_forward and not watch.thread.backward:
            self._data(path or class_name, site)
        head = f"Module.{path}.{class_name}" if path else f"Module.{class_name}"
        series = watch.series(head, "{head}.{phase}.{n}")
        number = series.next(recorder.epoch)
        self._name = series.name(number)
        self._in_scope = watch.in_scope(self._name, module, module_class, "module")
        self._shown = self._in_scope and watch.record_forward
        self._order = recorder.order()
        self._backward = backwards[path] = BackwardCall(
            watch, series.name(number, "backward"), watch.kinds["module"], module, module_class, self._order, site,
            parent.backward if parent else None,
        )  # fmt: skip
        if self._shown:
            recorder.call(
                self._order, self._name, watch.kinds["module"], module, module_class, watch.phases["forward"],
                parent.order if parent else -1, -1, watch.arguments(positional, named), site,
                watch.thread.backward > 0, -1, watch.thread_number(),
            )  # fmt: skip
            rows = watch.measure(self._inputs, self._name)
            if watch.settings.parameters:
                rows += watch.measure(self._state(), self._name)
            watch.slots(self._order, rows)
        self._tracks = watch.record_backward and paddle.is_grad_enabled()
        self._uses = self._gradients.used(self._inputs) if self._tracks else {}
        return Open(self._order, module, module_class, path, site, "", self._backward)

    def _state(self) -> list[Slot]:
        """Return parameters and buffers; what a norm only counts (`_mean`, `_variance`) is a buffer, as in torch."""
        found = []
        for name, value in self._layer._parameters.items():
            if value is not None:
                statistic = value.stop_gradient and name in ("_mean", "_variance")
                found.append((self._watch.slot_id(f"{'buffers' if statistic else 'parameters'}.{name}"), value))
        for name, value in self._layer._buffers.items():
            if value is not None:
                found.append((self._watch.slot_id(f"buffers.{name}"), value))
        return found

    def _data(self, label: str, site: int) -> None:
        """Record the batch that enters a root layer as a call of its own: data, before any computation."""
        watch = self._watch
        recorder = watch.recorder
        if not self._inputs:
            return
        series = watch.series(f"Data.{label}")
        name = recorder.strings.id(f"{series.head}.{series.next(recorder.epoch)}.input")
        if not watch.in_scope(name, watch.no_text, watch.no_text, "data", "input"):
            return
        order = recorder.order()
        recorder.call(
            order, name, watch.kinds["data"], watch.no_text, watch.no_text, watch.phases["input"], -1, -1, -1, site, False,
            -1, watch.thread_number(),
        )  # fmt: skip
        shown = []
        for slot, tensor in self._inputs:
            group, _, tail = recorder.strings[slot].partition(".")
            shown.append((watch.slot_id(f"output.{tail if group == 'input' else f'{group}.{tail}'}"), tensor))
        watch.slots(order, watch.measure(shown, name))

    def after(self, result: Any) -> None:
        """Record the outputs, and watch for the gradients."""
        watch = self._watch
        if not self._recorded:
            return
        outputs = watch.outputs(result)
        if self._shown:
            watch.slots(self._order, watch.measure(outputs, self._name))
        if self._in_scope and self._tracks and any(not tensor.stop_gradient for _, tensor in outputs):
            self._gradients.attach(self._backward, self._inputs, self._uses, outputs, makes=False)
        watch.ended(self._name)
        watch.flush_if_full()
