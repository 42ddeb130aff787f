"""Checkpoint recomputation: a forward call that runs again inside backward is linked to its first execution.

It takes the first execution's name and is no new call in the numbering. The first call of a recomputed stretch is found
by its inputs, which are the very tensors of the first time; the calls after it follow in the same order.
"""

from __future__ import annotations

from typing import Any

import torch


def is_recomputing() -> bool:
    """Tell whether a forward call that runs now is a recomputation: the engine runs, and gradients are recorded."""
    return int(torch._C._current_graph_task_id()) != -1 and torch.is_grad_enabled()


class Executions:
    """The forward calls of a step in the order of their first execution."""

    def __init__(self) -> None:
        # series, number, order, how many inputs, their numbers; and so on. Of operators: their names, and the name.
        self.log: list[Any] = []
        self._by_inputs: dict[Any, int] = {}  # made when the first recomputation is seen: most jobs have none
        self._indexed = 0
        self._cursor = -1
        self._task = -1

    def note(self, series: Any, number: int, order: int, inputs: list[int]) -> None:
        """Remember a first execution, with the numbers of the tensors that were its inputs."""
        self.log += (series, number, order, len(inputs), *inputs)

    def find(self, series: Any, inputs: list[int]) -> tuple[int, int] | None:
        """Return (number, order) of the first execution of a call that is recomputed now."""
        task = int(torch._C._current_graph_task_id())
        if task != self._task:
            self._task, self._cursor = task, -1
        self._index()
        log = self.log
        place: int | None = self._cursor
        follows = 0 <= self._cursor < len(log) and log[self._cursor] is series
        # What follows in order comes first: many calls may have the same inputs, such as the cosines of all layers.
        if not follows or log[self._cursor + 4 : self._cursor + 4 + log[self._cursor + 3]] != inputs:
            place = self._by_inputs.get((series, tuple(inputs)), self._cursor if follows else None)
        if place is None:
            return None
        self._cursor = place + 4 + log[place + 3]
        return log[place + 1], log[place + 2]

    def _index(self) -> None:
        log = self.log
        place = self._indexed
        while place < len(log):
            end = place + 4 + log[place + 3]
            self._by_inputs[log[place], tuple(log[place + 4 : end])] = place
            place = end
        self._indexed = place

    def forget(self) -> None:
        """Forget all: a new step begins."""
        self.log.clear()
        self._indexed = 0
        self._by_inputs.clear()
        self._cursor = -1
