"""Checkpoint recomputation: a forward call that runs again inside backward is linked to its first execution.

It takes the first execution's name and is no new call in the numbering. The first call of a recomputed stretch is found
by its inputs, which are the very tensors of the first time; the calls after it follow in the same order.
"""

from __future__ import annotations

from array import array
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
_LOOSE = 65_536 * _LENGTH  # numbers of the log that stay as they were noted: of most steps all


class Executions:
    """The forward calls of a step in the order of their first execution."""

    __slots__ = ("_by_inputs", "_cursor", "_indexed", "_packed", "_task", "log")

    def __init__(self) -> None:
        self.log: list[Any] = []  # an `Execution` after the other, in one list, which Python's collector is quick at
        self._by_inputs: dict[Hashable, int] = {}  # made when the first recomputation is seen: most jobs have none
        self._packed = _Packed()  # those before the log's
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
        place: int | None = self._cursor
        follows = 0 <= self._cursor < self._end and self._at(self._cursor).series is series
        # What follows in order comes first: many calls may have the same inputs, such as the cosines of all layers.
        if not follows or _tensors(self._at(self._cursor)) != inputs:
            place = self._by_inputs.get((series, tuple(inputs)), self._cursor if follows else None)
        if place is None:
            return None
        self._cursor = place + _LENGTH
        execution = self._at(place)
        return execution.number, execution.order

    @property
    def _end(self) -> int:
        return len(self._packed) * _LENGTH + len(self.log)

    def _at(self, place: int) -> Execution:
        place -= len(self._packed) * _LENGTH
        if place < 0:
            return self._packed[place // _LENGTH]
        return Execution._make(self.log[place : place + _LENGTH])

    def _index(self) -> None:
        for place in range(self._indexed, self._end, _LENGTH):
            execution = self._at(place)
            self._by_inputs[execution.series, tuple(_tensors(execution))] = place
        self._indexed = self._end

    def pack(self) -> None:
        """Pack the log where it is long: a step may have a million calls."""
        if len(self.log) > _LOOSE:
            log = self.log[:]  # to which another thread may be adding
            for place in range(0, len(log), _LENGTH):
                self._packed.add(Execution._make(log[place : place + _LENGTH]))
            del self.log[: len(log)]

    def forget(self) -> None:
        """Forget all: a new step begins."""
        self.log.clear()
        self._packed = _Packed()
        self._indexed = 0
        self._by_inputs.clear()
        self._cursor = -1


class _Packed:
    """Executions in a tenth of the memory."""

    def __init__(self) -> None:
        self._series: list[object] = []
        self._ids: dict[int, int] = {}  # of these objects: their places
        self._facts = array("i")  # of each execution its series' place, its number, its order and the end of its inputs
        self._inputs = array("i")

    def __len__(self) -> int:
        return len(self._facts) // _FACTS

    def add(self, execution: Execution) -> None:
        """Add an execution."""
        series = self._ids.setdefault(id(execution.series), len(self._series))
        if series == len(self._series):
            self._series.append(execution.series)
        self._inputs.extend(_tensors(execution))
        self._facts.extend((series, execution.number, execution.order, len(self._inputs)))

    def __getitem__(self, place: int) -> Execution:
        place %= len(self)
        series, number, order, end = self._facts[place * _FACTS : (place + 1) * _FACTS]
        start = self._facts[place * _FACTS - 1] if place else 0
        return Execution(self._series[series], number, order, -1, self._inputs[start:end].tolist())


_FACTS = 4


def _tensors(execution: Execution) -> list[int]:
    inputs, length = execution.inputs, execution.length
    return inputs if length < 0 else tensors_of(inputs[:length])
