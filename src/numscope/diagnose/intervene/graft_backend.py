"""The part of a framework that grafting needs: its modules, hooks, calls and tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeGuard, TypeVar

from numscope.diagnose.recorded.step_graph import StepGraph

Undo = Callable[[], None]
M = TypeVar("M")
T = TypeVar("T")
Arguments = tuple[tuple[object, ...], dict[str, object]]  # of a module's call, by position and by name
ReplaceInputs = Callable[[tuple[object, ...], dict[str, object]], Arguments | None]
ReplaceResult = Callable[[object], object]
ReplaceCallResult = Callable[[str, object], object]


class Backend(Protocol[M, T]):
    """A framework, as far as grafting needs it; M is its module and T its tensor."""

    def modules(self, model: M) -> Iterable[tuple[str, M]]:
        """Yield path and module."""

    def hook(self, module: M, before: ReplaceInputs, after: ReplaceResult) -> Undo:
        """Call `before` with a module's arguments and `after` with its result; what they return takes their place."""

    def is_tensor(self, value: object) -> TypeGuard[T]:
        """Tell whether a value is a tensor."""

    def shape(self, tensor: T) -> tuple[int, ...]:
        """Return a tensor's shape."""

    def replaced(self, value: T, graph: StepGraph, number: int) -> T:
        """Return a recorded tensor in the place of one of the model's: same device and dtype, gradients flow through."""

    def watch_calls(self, after: ReplaceCallResult) -> Undo:
        """Call `after` with the name of each call and its result; what it returns takes the result's place."""

    def on_step(self, callback: Callable[[], None]) -> Undo:
        """Call back after each optimizer step."""

    def is_recomputing(self) -> bool:
        """Tell whether a checkpoint recomputes, in backward, what ran before."""
