"""Grafting into a paddle model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import paddle

from numscope.core.errors import SettingsError
from numscope.diagnose.recorded.step_graph import StepGraph

Undo = Callable[[], None]


class PaddleBackend:
    """Hooks of paddle layers."""

    def modules(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Yield path and layer."""
        found: Iterable[tuple[str, Any]] = model.named_sublayers(include_self=True)
        return found

    def hook(self, module: Any, before: Callable[..., Any], after: Callable[..., Any]) -> Undo:
        """Register both hooks; paddle's see no keyword arguments."""

        def first(_: Any, args: tuple[Any, ...]) -> Any:
            changed = before(args, {})
            return None if changed is None else changed[0]

        handles = [
            module.register_forward_pre_hook(first),
            module.register_forward_post_hook(lambda _, args, result: after(result)),
        ]

        def undo() -> None:
            for handle in handles:
                handle.remove()

        return undo

    def is_tensor(self, value: Any) -> bool:
        """Tell whether a value is a tensor."""
        return isinstance(value, paddle.Tensor)

    def replaced(self, value: Any, graph: StepGraph, number: int) -> Any:
        """Return the recorded tensor in the value's dtype, with the value's gradient."""
        data = graph.array(number)
        if data.dtype.kind not in "biu" and data.dtype.itemsize < 4:
            data = data.astype("float32")  # holds every value of bf16, fp16 and fp8
        other = paddle.to_tensor(data, place=value.place).astype(value.dtype)
        if value.stop_gradient or "float" not in str(value.dtype):
            return other
        return _Replace.apply(value, other)

    def watch_calls(self, wants: Callable[[str], bool], after: Callable[[str, Any], Any]) -> Undo:
        """Paddle's functions can't be interposed: layers can."""
        raise SettingsError("in a paddle model whole layers can be grafted, by path; single calls can't")

    def on_step(self, callback: Callable[[], None]) -> Undo:
        """Paddle tells of no optimizer's step: `Graft.step()` ends one."""
        return lambda: None

    def runs_again(self) -> bool:
        """Paddle does not tell."""
        return False


class _Replace(paddle.autograd.PyLayer):  # type: ignore[misc]
    """Gives another value forward, to the bit, and hands the gradient on backward."""

    @staticmethod
    def forward(ctx: Any, value: Any, other: Any) -> Any:
        return other.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, None
