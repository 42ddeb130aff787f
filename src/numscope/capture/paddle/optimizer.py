"""Optimizer steps: each parameter and gradient before, each parameter after, and the hyperparameters as arguments."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import paddle

from numscope.capture.paddle.layers import Layers
from numscope.capture.paddle.own_code import OwnCode
from numscope.capture.paddle.watch import Slot, Undo, Watch

_SETTINGS = (
    "beta1", "beta2", "epsilon", "momentum", "rho", "use_nesterov", "multi_precision", "rescale_grad", "centered", "amsgrad",
)  # fmt: skip


class Optimizers:
    """Replaces `step` on Paddle's optimizers, each class that has its own."""

    def __init__(self, watch: Watch, layers: Layers) -> None:
        self._watch = watch
        self._layers = layers

    def install(self) -> Undo:
        """Replace; return what puts everything back."""
        return replace_steps(self._wrapper)

    def _wrapper(self, original: Any) -> Any:
        watch = self._watch

        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
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
                watch.tensors.forget()  # it has written without a new version
                if opened is not None:
                    with OwnCode(watch, "optimizer"):
                        self._after(optimizer, *opened)

        return step

    def _before(self, optimizer: Any, frame: Any) -> tuple[int, int] | None:
        watch = self._watch
        if not watch.settings.optimizer:
            return None
        recorder = watch.recorder
        series = watch.series(f"Optimizer.{type(optimizer).__name__}", "{head}.step.{n}")
        name = series.name(series.next(recorder.epoch))
        if not watch.scope.everything and not watch.in_scope(
            name, watch.no_text, watch.no_text, "optimizer", "optimizer"
        ):
            return None
        order = recorder.order()
        facts: dict[str, Any] = {"lr": float(optimizer.get_lr())}
        for setting in _SETTINGS:
            value = getattr(optimizer, f"_{setting}", None)
            if isinstance(value, (int, float, bool)):
                facts[setting] = value
        facts.update(_decay_and_clip(optimizer))
        recorder.call(
            order, name, watch.kinds["optimizer"], watch.no_text, watch.no_text, watch.phases["optimizer"], -1, -1,
            watch.arguments([], [("0", facts)]), watch.site(frame), False, -1, watch.thread_number(),
        )  # fmt: skip
        slots: list[Slot] = []
        for label, parameter in self._parameters(optimizer):
            slots.append((watch.slot_id(f"parameters.{label}"), parameter))
            if parameter.grad is not None:
                slots.append((watch.slot_id(f"parameters_grad.{label}"), parameter.grad))
        watch.slots(order, watch.measure(slots, name))
        return order, name

    def _after(self, optimizer: Any, order: int, name: int) -> None:
        watch = self._watch
        slots = [(watch.slot_id(f"output.{label}"), parameter) for label, parameter in self._parameters(optimizer)]
        watch.slots(order, watch.measure(slots, name))
        watch.flush_if_full()

    def _parameters(self, optimizer: Any) -> Iterator[tuple[str, Any]]:
        for item in optimizer._parameter_list or ():
            for parameter in item["params"] if isinstance(item, dict) else [item]:
                if not parameter.stop_gradient:
                    yield self._layers.parameter_name(parameter) or parameter.name, parameter


def _decay_and_clip(optimizer: Any) -> dict[str, Any]:
    """Return what is done to weights and gradients beside the update itself, as far as its numbers are known."""
    facts: dict[str, Any] = {}
    regularization = getattr(optimizer, "regularization", None)
    decays = [getattr(optimizer, name, None) for name in ("_weight_decay", "_regularization_coeff")]
    if type(regularization).__name__ == "L2Decay":
        decays.append(getattr(regularization, "_coeff", None))
    if regularization is None or decays[2:]:
        facts["weight_decay"] = next((float(decay) for decay in decays if isinstance(decay, float) and decay), 0.0)
    clip = getattr(optimizer, "_grad_clip", None)
    if clip is not None:
        norm = getattr(clip, "clip_norm", None)
        facts["grad_clip"] = type(clip).__name__ + (f"({norm})" if isinstance(norm, (int, float)) else "")
    return facts


def tick(stepped: Callable[[Any], None]) -> Undo:
    """Call back after each optimizer's step; return what ends that."""
    inside = threading.local()

    def wrapper(original: Any) -> Any:
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
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


def replace_steps(wrapper: Callable[[Any], Any]) -> Undo:
    """Replace `step` on each optimizer class that has its own; return what puts them back."""
    replaced = []
    for kind in _classes(paddle.optimizer.Optimizer):
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


def _classes(base: Any) -> Iterator[Any]:
    yield base
    for kind in base.__subclasses__():
        yield from _classes(kind)
