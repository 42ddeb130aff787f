"""Grafting into a paddle model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeGuard

import paddle

from numscope.core.errors import SettingsError
from numscope.diagnose.intervene.graft_backend import ReplaceCallResult, ReplaceInputs, ReplaceResult, Undo
from numscope.diagnose.recorded.step_graph import StepGraph


class PaddleBackend:
    """Hooks of paddle layers."""

    def modules(self, model: paddle.nn.Layer) -> Iterable[tuple[str, paddle.nn.Layer]]:
        """Yield path and layer."""
        yield from model.named_sublayers(include_self=True)

    def hook(self, module: paddle.nn.Layer, before: ReplaceInputs, after: ReplaceResult) -> Undo:
        """Register both hooks; Paddle's hooks are not given keyword arguments."""

        def first(_: object, args: tuple[object, ...]) -> tuple[object, ...] | None:
            changed = before(args, {})
            if changed is None:
                return None
            positional, _named = changed
            return positional

        handles = [
            module.register_forward_pre_hook(first),
            module.register_forward_post_hook(lambda _, args, result: after(result)),
        ]

        def undo() -> None:
            for handle in handles:
                handle.remove()

        return undo

    def is_tensor(self, value: object) -> TypeGuard[paddle.Tensor]:
        """Tell whether a value is a tensor."""
        return isinstance(value, paddle.Tensor)

    def shape(self, tensor: paddle.Tensor) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return tuple(tensor.shape)

    def replaced(self, value: paddle.Tensor, graph: StepGraph, number: int) -> paddle.Tensor:
        """Return the recorded tensor in the value's dtype, with the value's gradient."""
        data = graph.array(number)
        if data.dtype.kind not in "biu" and data.dtype.itemsize < 4:
            data = data.astype("float32")  # holds every value of bf16, fp16 and fp8
        other = paddle.to_tensor(data, place=value.place).astype(value.dtype)
        if value.stop_gradient or "float" not in str(value.dtype):
            return other
        return _Replace.apply(value, other)

    def watch_calls(self, after: ReplaceCallResult) -> Undo:
        """Refuse: Paddle's functions can't be interposed, its layers can."""
        raise SettingsError("in a paddle model whole layers can be grafted, by path; single calls can't")

    def on_step(self, callback: Callable[[], None]) -> Undo:
        """Do nothing: Paddle has no hook for optimizer steps; `Graft.step()` ends a step."""
        return lambda: None

    def is_recomputing(self) -> bool:
        """Return False: Paddle does not show it."""
        return False


class _Replace(paddle.autograd.PyLayer):  # type: ignore[misc]
    """Returns another value bit for bit in forward, and passes the gradient through in backward."""

    @staticmethod
    def forward(ctx: object, value: paddle.Tensor, other: paddle.Tensor) -> paddle.Tensor:
        return other.clone()

    @staticmethod
    def backward(ctx: object, gradient: object) -> tuple[object, None]:
        return gradient, None
