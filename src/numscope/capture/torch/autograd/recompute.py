"""Checkpoint recomputation: a forward call that runs again inside backward is linked to its first execution.

It takes the first execution's name and is no new call in the numbering. The first call of a recomputed stretch is found
by its inputs, which are the very tensors of the first time; the calls after it follow in the same order.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch

from numscope.capture.recording.rows import tensors_of


class Execution(NamedTuple):
    """The first execution of a forward call, or of a forward operator."""

    series: object  # of its names: a `Series`, or an operator's `Names`
    number: int  # in the series; an operator's name
    order: int
    length: int  # how many of the numbers in `inputs` are rows of its inputs' slots; -1: they are the tensors' numbers
    inputs: list[int]


_LENGTH = len(Execution._fields)


class Executions:
    """The forward calls of a step in the order of their first execution."""

    __slots__ = ("_by_inputs", "_cursor", "_indexed", "_task", "log")

    def __init__(self) -> None:
        self.log: list[Any] = []  # an `Execution` after the other, in one list, which Python's collector is quick at
        self._by_inputs: dict[Hashable, int] = {}  # made when the first recomputation is seen: most jobs have none
        self._indexed = 0
        self._cursor = -1
        self._task = -1

    def note(self, series: object, number: int, order: int, inputs: list[int]) -> None:
        """Remember a first execution, with the numbers of the tensors that were its inputs."""
        self.log += (series, number, order, -1, inputs)  # an Execution

    def find(self, series: object, inputs: list[int]) -> tuple[int, int] | None:
        """Return (number, order) of the first execution of a call that is recomputed now."""
        task = int(torch._C._current_graph_task_id())
        if task != self._task:
            self._task, self._cursor = task, -1
        self._index()
        log = self.log
        place: int | None = self._cursor
        follows = 0 <= self._cursor < len(log) and log[self._cursor] is series
        # What follows in order comes first: many calls may have the same inputs, such as the cosines of all layers.
        if not follows or _tensors(self._at(self._cursor)) != inputs:
            place = self._by_inputs.get((series, tuple(inputs)), self._cursor if follows else None)
        if place is None:
            return None
        self._cursor = place + _LENGTH
        execution = self._at(place)
        return execution.number, execution.order

    def _at(self, place: int) -> Execution:
        return Execution._make(self.log[place : place + _LENGTH])

    def _index(self) -> None:
        for place in range(self._indexed, len(self.log), _LENGTH):
            execution = self._at(place)
            self._by_inputs[execution.series, tuple(_tensors(execution))] = place
        self._indexed = len(self.log)

    def forget(self) -> None:
        """Forget all: a new step begins."""
        self.log.clear()
        self._indexed = 0
        self._by_inputs.clear()
        self._cursor = -1


def _tensors(execution: Execution) -> list[int]:
    inputs, length = execution.inputs, execution.length
    return inputs if length < 0 else tensors_of(inputs[:length])
