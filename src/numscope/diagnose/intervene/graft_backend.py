"""The interface to a framework that grafting needs: modules, hooks, calls and tensors."""

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
    """A framework as grafting uses it; M is its module and T its tensor."""

    def modules(self, model: M) -> Iterable[tuple[str, M]]:
        """Yield path and module."""

    def hook(self, module: M, before: ReplaceInputs, after: ReplaceResult) -> Undo:
        """Replace a module's arguments by what `before` returns for them, and its result by what `after` returns."""

    def is_tensor(self, value: object) -> TypeGuard[T]:
        """Tell whether a value is a tensor."""

    def shape(self, tensor: T) -> tuple[int, ...]:
        """Return a tensor's shape."""

    def replaced(self, value: T, graph: StepGraph, number: int) -> T:
        """Return a recorded tensor on the device and in the dtype of a value, through which the value's gradient flows."""

    def watch_calls(self, after: ReplaceCallResult) -> Undo:
        """Replace the result of each call by what `after` returns for its name and result."""

    def on_step(self, callback: Callable[[], None]) -> Undo:
        """Call back after each optimizer step."""

    def is_recomputing(self) -> bool:
        """Tell whether a checkpoint is recomputing its forward pass."""
