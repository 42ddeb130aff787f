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


_LENGTH = 5  # of an entry of the log


class Executions:
    """The forward calls of a step in the order of their first execution."""

    __slots__ = ("_by_inputs", "_cursor", "_indexed", "_task", "log")

    def __init__(self) -> None:
        # series, number, order, the numbers of its inputs; and so on. Of operators: their names, and the name. Where the rows
        # of the inputs stay as they are, the numbers are left in them: how many numbers the rows are, else -1, and the rows.
        self.log: list[Any] = []
        self._by_inputs: dict[Any, int] = {}  # made when the first recomputation is seen: most jobs have none
        self._indexed = 0
        self._cursor = -1
        self._task = -1

    def note(self, series: Any, number: int, order: int, inputs: list[int]) -> None:
        """Remember a first execution, with the numbers of the tensors that were its inputs."""
        self.log += (series, number, order, -1, inputs)

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
        if not follows or self._inputs(self._cursor) != inputs:
            place = self._by_inputs.get((series, tuple(inputs)), self._cursor if follows else None)
        if place is None:
            return None
        self._cursor = place + _LENGTH
        return log[place + 1], log[place + 2]

    def _inputs(self, place: int) -> list[int]:
        count, rows = self.log[place + 3 : place + _LENGTH]
        return rows if count < 0 else rows[2:count:4]  # type: ignore[no-any-return]

    def _index(self) -> None:
        log = self.log
        for place in range(self._indexed, len(log), _LENGTH):
            self._by_inputs[log[place], tuple(self._inputs(place))] = place
        self._indexed = len(log)

    def forget(self) -> None:
        """Forget all: a new step begins."""
        self.log.clear()
        self._indexed = 0
        self._by_inputs.clear()
        self._cursor = -1
