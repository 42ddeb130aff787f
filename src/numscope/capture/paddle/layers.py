"""The module level: every `paddle.nn.Layer` call, its inputs, parameters, statistics and outputs."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

import paddle
from paddle.nn import Layer

from numscope.capture.paddle.gradients import BackwardCall, Gradients
from numscope.capture.paddle.own_code import OwnCode
from numscope.capture.paddle.watch import Argument, Open, Place, Slot, Undo, Watch

# Parameters that have a hook: Paddle gives no way to remove a backward hook, so each parameter gets one for good, which
# calls the layers of the captures that run now.
_hooked: dict[int, weakref.ref[paddle.Tensor]] = {}
_listening: list[Layers] = []


class NamedLayer(NamedTuple):
    """A layer of a captured model, and its path."""

    layer: weakref.ref[Layer]
    path: str


class NamedParameter(NamedTuple):
    """A parameter of a captured model, the path of its layer and its name there."""

    parameter: weakref.ref[paddle.Tensor]
    path: str
    name: str


class Layers:
    """Knows the layers of the captured models by path, and records their calls."""

    def __init__(self, watch: Watch, gradients: Gradients, models: dict[str, Layer]) -> None:
        self._watch = watch
        self._gradients = gradients
        self._layers: dict[int, NamedLayer] = {}  # by id
        self._parameters: dict[int, NamedParameter] = {}  # by id
        self._backwards: dict[str, BackwardCall] = {}
        self._roots = 0
        self.met: Callable[[Layer], None] | None = None  # called with each layer that is registered
        for prefix, model in models.items():
            self.register(model, prefix)

    def register(self, model: Layer, prefix: str) -> None:
        """Learn the paths of a model's layers and watch its parameters' gradients."""
        self._roots += 1
        for path, layer in model.named_sublayers(prefix=prefix, include_self=True):
            self._layers[id(layer)] = NamedLayer(weakref.ref(layer), path)
            if self.met is not None:
                self.met(layer)
            for name, parameter in layer._parameters.items():
                if parameter is not None and id(parameter) not in self._parameters:
                    self._parameters[id(parameter)] = NamedParameter(weakref.ref(parameter), path, name)
                    self._watch_gradient(parameter)

    def meet(self, met: Callable[[Layer], None]) -> None:
        """Call `met` with each layer: now with those that are registered, later with each new one."""
        self.met = met
        for named in list(self._layers.values()):
            if (layer := named.layer()) is not None:
                met(layer)

    def parameter_name(self, parameter: paddle.Tensor) -> str | None:
        """Return the dotted name of a parameter, or None where it belongs to no captured model."""
        named = self._parameters.get(id(parameter))
        if named is None or named.parameter() is not parameter:
            return None
        return ".".join(part for part in (named.path, named.name) if part)

    def install(self) -> Undo:
        """Replace `Layer.__call__`; return a function that puts it back."""
        original = Layer.__call__
        record = self._record

        def __call__(layer: Layer, *args: object, **kwargs: object) -> object:
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

    def _path(self, layer: Layer) -> str:
        named = self._layers.get(id(layer))
        if named is not None and named.layer() is layer:
            return named.path
        stack = self._watch.thread.stack
        if stack:  # made while the model runs
            path = f"{stack[-1].path}.{type(layer).__name__}" if stack[-1].path else type(layer).__name__
            self._layers[id(layer)] = NamedLayer(weakref.ref(layer), path)
            return path
        prefix = "" if self._roots == 0 or not layer.sublayers() else f"{type(layer).__name__}{self._roots}"
        self.register(layer, prefix)
        return prefix

    def _record(
        self, original: Callable[..., object], layer: Layer, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
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

    def _watch_gradient(self, parameter: paddle.Tensor) -> None:
        if not (self._watch.settings.parameters and self._watch.record_backward) or parameter.stop_gradient:
            return
        hooked = _hooked.get(id(parameter))
        if hooked is not None and hooked() is parameter:
            return
        reference = _hooked[id(parameter)] = weakref.ref(parameter)

        def accumulated(*_: object) -> None:
            value = reference()
            for layers in list(_listening):
                if value is not None:
                    layers.accumulated(value)

        parameter._register_backward_hook(accumulated)

    def accumulated(self, parameter: paddle.Tensor) -> None:
        """Record a parameter's gradient, which has just been accumulated."""
        watch = self._watch
        named = self._parameters.get(id(parameter))
        if not watch.on or watch.thread.busy or named is None or parameter.grad is None:
            return
        call = self._backwards.get(named.path)
        if call is None or not watch.in_scope(call.name, call.place, "module", "backward"):
            return
        with OwnCode(watch, "parameters_grad"):
            slot = Slot(watch.slot_id(f"parameters_grad.{named.name}"), parameter.grad)
            watch.slots(call.begin(), watch.measure([slot], call.name, True))


class _LayerCall:
    """One call of a layer, from before to after."""

    def __init__(self, watch: Watch, gradients: Gradients, layer: Layer) -> None:
        self._watch, self._gradients, self._layer = watch, gradients, layer
        self._recorded = watch.settings.level != "api"

    def before(
        self,
        path: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        frame: FrameType,
        backwards: dict[str, BackwardCall],
    ) -> Open:
        """Record the call with its inputs, parameters and buffers as they are before it."""
        watch = self._watch
        recorder = watch.recorder
        stack = watch.thread.stack
        parent = stack[-1] if stack else None
        class_name = type(self._layer).__name__
        place = Place(recorder.strings.id(path), recorder.strings.id(class_name))
        site = watch.site(frame)
        outer = parent.backward if parent else None
        parent_order = parent.order if parent else -1
        if not self._recorded:
            return Open(parent_order, place, path, site, "", outer)
        positional: list[Argument] = []
        named: list[Argument] = []
        self._inputs: list[Slot] = watch.flatten("input", args, positional)
        self._inputs += watch.flatten("kwargs", kwargs, named)
        if parent is None and watch.record_forward and not watch.thread.backward:
            self._data(path or class_name, site)
        head = f"Module.{path}.{class_name}" if path else f"Module.{class_name}"
        series = watch.series(head, "{head}.{phase}.{n}")
        number = series.next(recorder.epoch)
        self._name = series.name(number)
        self._in_scope = watch.in_scope(self._name, place, "module")
        self._shown = self._in_scope and watch.record_forward
        self._order = recorder.order()
        backward_name = series.name(number, "backward")
        self._backward = BackwardCall(watch, backward_name, "module", place, self._order, site, outer)
        backwards[path] = self._backward
        if self._shown:
            watch.call(
                self._order,
                self._name,
                "module",
                "forward",
                place,
                parent=parent_order,
                arguments=watch.arguments(positional, named),
                site=site,
                recompute=watch.thread.backward > 0,
            )
            rows = watch.measure(self._inputs, self._name)
            if watch.settings.parameters:
                rows += watch.measure(self._state(), self._name)
            watch.slots(self._order, rows)
        self._tracks = watch.record_backward and paddle.is_grad_enabled()
        self._uses = self._gradients.used(self._inputs) if self._tracks else {}
        return Open(self._order, place, path, site, "", self._backward)

    def _state(self) -> list[Slot]:
        """Return parameters and buffers; a norm's running statistics (`_mean`, `_variance`) are buffers, as in torch."""
        slots = []
        for name, value in self._layer._parameters.items():
            if value is not None:
                statistic = value.stop_gradient and name in ("_mean", "_variance")
                group = "buffers" if statistic else "parameters"
                slots.append(Slot(self._watch.slot_id(f"{group}.{name}"), value))
        for name, value in self._layer._buffers.items():
            if value is not None:
                slots.append(Slot(self._watch.slot_id(f"buffers.{name}"), value))
        return slots

    def _data(self, label: str, site: int) -> None:
        """Record the batch that enters a root layer as a call of kind `data`, before any computation."""
        watch = self._watch
        recorder = watch.recorder
        if not self._inputs:
            return
        series = watch.series(f"Data.{label}")
        name = recorder.strings.id(f"{series.head}.{series.next(recorder.epoch)}.input")
        if not watch.in_scope(name, watch.no_place, "data", "input"):
            return
        order = recorder.order()
        watch.call(order, name, "data", "input", watch.no_place, site=site)
        shown = []
        for slot, tensor in self._inputs:
            group, _, tail = recorder.strings[slot].partition(".")
            label = tail if group == "input" else f"{group}.{tail}"
            shown.append(Slot(watch.slot_id(f"output.{label}"), tensor))
        watch.slots(order, watch.measure(shown, name))

    def after(self, result: object) -> None:
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
