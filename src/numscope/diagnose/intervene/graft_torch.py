"""Grafting into a torch model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeGuard

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode

from numscope.capture.torch.levels.function_names import ApiTable
from numscope.capture.torch.own_code import OwnCode
from numscope.diagnose.intervene.graft_backend import ReplaceCallResult, ReplaceInputs, ReplaceResult, Undo
from numscope.diagnose.intervene.reroute import push
from numscope.diagnose.recorded.step_graph import StepGraph


class _Replace(torch.autograd.Function):
    """Returns another value bit for bit in forward, and passes the gradient through in backward."""

    @staticmethod
    def forward(ctx: object, value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return other.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class _Calls(TorchFunctionMode):
    """Names torch functions as a capture does, and replaces their results."""

    def __init__(self, after: ReplaceCallResult) -> None:
        super().__init__()
        self._after = after
        self._table = ApiTable()

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        api = self._table[func]
        return result if api.silent or api.transparent else self._after(api.head, result)


class TorchBackend:
    """Hooks of torch modules."""

    def modules(self, model: torch.nn.Module) -> Iterable[tuple[str, torch.nn.Module]]:
        """Yield path and module."""
        yield from model.named_modules()

    def hook(self, module: torch.nn.Module, before: ReplaceInputs, after: ReplaceResult) -> Undo:
        """Register both hooks."""
        handles = [
            module.register_forward_pre_hook(lambda _, args, kwargs: before(args, kwargs), with_kwargs=True),
            module.register_forward_hook(lambda _, args, result: after(result)),
        ]

        def undo() -> None:
            for handle in handles:
                handle.remove()

        return undo

    def is_tensor(self, value: object) -> TypeGuard[torch.Tensor]:
        """Tell whether a value is a tensor."""
        return isinstance(value, torch.Tensor)

    def shape(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return tuple(tensor.shape)

    def replaced(self, value: torch.Tensor, graph: StepGraph, number: int) -> torch.Tensor:
        """Return the recorded tensor on the value's device and in its dtype, with the value's gradient."""
        with OwnCode():
            other = graph.data(number).to(value.device, value.dtype)
            result: torch.Tensor = _Replace.apply(value, other) if value.requires_grad else other.clone()  # type: ignore[no-untyped-call]
        return result

    def watch_calls(self, after: ReplaceCallResult) -> Undo:
        """Replace the results of torch functions by name."""
        return push(_Calls(after))

    def on_step(self, callback: Callable[[], None]) -> Undo:
        """Call back after each optimizer step."""
        handle = register_optimizer_step_post_hook(lambda *_: callback())
        return handle.remove

    def is_recomputing(self) -> bool:
        """Tell whether the autograd engine runs: the forward calls it makes are recomputations."""
        return bool(torch._C._current_graph_task_id() != -1)
