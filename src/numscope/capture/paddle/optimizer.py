"""Optimizer steps: each parameter and gradient before, each parameter after, and the hyperparameters as arguments."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NamedTuple

import paddle
from paddle.optimizer import Optimizer

from numscope.capture.paddle.layers import Layers
from numscope.capture.paddle.own_code import OwnCode
from numscope.capture.paddle.watch import Slot, Undo, Watch, subclasses

_SETTINGS = """
    beta1 beta2 epsilon momentum rho use_nesterov multi_precision rescale_grad centered amsgrad
    """.split()

Step = Callable[..., object]  # an optimizer class's `step`


class OpenStep(NamedTuple):
    """An optimizer's step that has begun."""

    order: int
    name: int


class Optimizers:
    """Replaces `step` on Paddle's optimizers, each class that has its own."""

    def __init__(self, watch: Watch, layers: Layers) -> None:
        self._watch = watch
        self._layers = layers

    def install(self) -> Undo:
        """Replace `step`; return a function that puts it back."""
        return replace_steps(self._wrapper)

    def _wrapper(self, original: Step) -> Step:
        watch = self._watch

        def step(optimizer: Optimizer, *args: object, **kwargs: object) -> object:
            thread = watch.thread
            if not watch.on or thread.quiet or thread.busy:
                return original(optimizer, *args, **kwargs)
            opened = None
            with OwnCode(watch, "optimizer"):
                opened = self._before(optimizer, sys._getframe(1))
            thread.quiet = True
            try:
                return original(optimizer, *args, **kwargs)
            finally:
                thread.quiet = False
                watch.tensors.forget()  # the step has written to tensors without raising their versions
                if opened is not None:
                    with OwnCode(watch, "optimizer"):
                        self._after(optimizer, opened)

        return step

    def _before(self, optimizer: Optimizer, frame: FrameType) -> OpenStep | None:
        watch = self._watch
        if not watch.settings.optimizer:
            return None
        recorder = watch.recorder
        series = watch.series(f"Optimizer.{type(optimizer).__name__}", "{head}.step.{n}")
        name = series.name(series.next(recorder.epoch))
        if not watch.scope.everything and not watch.in_scope(name, watch.no_place, "optimizer", "optimizer"):
            return None
        order = recorder.order()
        facts: dict[str, object] = {"lr": float(optimizer.get_lr())}
        for setting in _SETTINGS:
            value = getattr(optimizer, f"_{setting}", None)
            if isinstance(value, (int, float, bool)):
                facts[setting] = value
        facts.update(_decay_and_clip(optimizer))
        arguments, site = watch.arguments([], [("0", facts)]), watch.site(frame)
        watch.call(order, name, "optimizer", "optimizer", watch.no_place, arguments=arguments, site=site)
        slots: list[Slot] = []
        for label, parameter in self._parameters(optimizer):
            slots.append(Slot(watch.slot_id(f"parameters.{label}"), parameter))
            if parameter.grad is not None:
                slots.append(Slot(watch.slot_id(f"parameters_grad.{label}"), parameter.grad))
        watch.slots(order, watch.measure(slots, name))
        return OpenStep(order, name)

    def _after(self, optimizer: Optimizer, opened: OpenStep) -> None:
        watch = self._watch
        slots = [Slot(watch.slot_id(f"output.{label}"), parameter) for label, parameter in self._parameters(optimizer)]
        watch.slots(opened.order, watch.measure(slots, opened.name))
        watch.flush_if_full()

    def _parameters(self, optimizer: Optimizer) -> Iterator[tuple[str, paddle.Tensor]]:
        for item in optimizer._parameter_list or ():
            for parameter in item["params"] if isinstance(item, dict) else [item]:
                if not parameter.stop_gradient:
                    yield self._layers.parameter_name(parameter) or parameter.name, parameter


def _decay_and_clip(optimizer: Optimizer) -> dict[str, object]:
    """Return the weight decay and the gradient clipping of an optimizer, as far as their numbers can be read."""
    facts: dict[str, object] = {}
    regularization = getattr(optimizer, "regularization", None)
    decays = [getattr(optimizer, name, None) for name in ("_weight_decay", "_regularization_coeff")]
    is_l2 = type(regularization).__name__ == "L2Decay"
    if is_l2:
        decays.append(getattr(regularization, "_coeff", None))
    if regularization is None or is_l2:
        facts["weight_decay"] = next((float(decay) for decay in decays if isinstance(decay, float) and decay), 0.0)
    clip = getattr(optimizer, "_grad_clip", None)
    if clip is not None:
        norm = getattr(clip, "clip_norm", None)
        facts["grad_clip"] = type(clip).__name__ + (f"({norm})" if isinstance(norm, (int, float)) else "")
    return facts


def tick(stepped: Callable[[object], None]) -> Undo:
    """Call back after each optimizer's step; return a function that ends this."""
    inside = threading.local()

    def wrapper(original: Step) -> Step:
        def step(optimizer: Optimizer, *args: object, **kwargs: object) -> object:
            if getattr(inside, "step", False):  # one class's step calls another's
                return original(optimizer, *args, **kwargs)
            inside.step = True
            try:
                result = original(optimizer, *args, **kwargs)
            finally:
                inside.step = False
            stepped(optimizer)
            return result

        return step

    return replace_steps(wrapper)


def replace_steps(wrapper: Callable[[Step], Step]) -> Undo:
    """Replace `step` on each optimizer class that has its own; return a function that puts them back."""
    replaced = []
    for kind in subclasses(Optimizer):
        original = kind.__dict__.get("step")
        if original is not None:
            ours = wrapper(original)
            replaced.append((kind, original, ours))
            kind.step = ours

    def undo() -> None:
        for kind, original, ours in replaced:
            if kind.__dict__.get("step") is ours:
                kind.step = original

    return undo
