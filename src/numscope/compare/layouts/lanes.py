"""Lanes: the calls of one micro-batch of one rank; the same calls lie in all lanes, on other pieces of the tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from numscope.compare.load.side import Flags, Ints, Side


@dataclass(frozen=True)
class Lane:
    """The calls of one micro-batch of one rank."""

    side: Side
    rank: int
    stage: int  # of a pipeline, in the order of the ranks
    rows: Ints  # of the calls, in order
    late: Flags  # of all calls of the side: from the lane's first backward call on
    is_split: bool  # its rank has others: micro-batches


def micro_batches(side: Side) -> int:
    """Return how often a step calls its model: the modules that no call encloses are all called equally often."""
    counts = [len(rows) for rows in _outermost(side).values()]
    return counts[0] if counts and len(set(counts)) == 1 else 1


def lanes_of(sides: Sequence[Side], split: bool) -> list[Lane]:
    """Return the lanes of all ranks of a step; `split` makes one of each micro-batch."""
    stages = _stages(sides)
    found: list[Lane] = []
    for side, stage in zip(sides, stages):
        parts = micro_batches(side) if split else 1
        number = _lane_of_calls(side) if parts > 1 else np.zeros(len(side.calls), np.int64)
        backward = side.calls.phase == side.book.code("backward")
        for part in range(parts):
            rows = np.flatnonzero(number == part)
            first = rows[backward[rows]][:1]
            late = np.zeros(len(side.calls), np.bool_)
            late[int(first[0]) if len(first) else len(late) :] = True
            found.append(Lane(side, side.rank, stage, rows, late | backward, parts > 1))
    return found


def by_stage(lanes: Sequence[Lane], *, backward: bool) -> list[int]:
    """Return the numbers of the lanes in the order in which a pipeline's stages run."""
    return sorted(range(len(lanes)), key=lambda number: -lanes[number].stage if backward else lanes[number].stage)


def _outermost(side: Side) -> dict[int, list[int]]:
    """Return the forward calls of modules that no other call encloses, by the module's path."""
    calls, book = side.calls, side.book
    chosen = (calls.kind == book.code("module")) & (calls.phase == book.code("forward"))
    rows = np.flatnonzero(chosen & (calls.parent < 0) & ~calls.recompute)
    found: dict[int, list[int]] = {}
    for row in rows.tolist():
        found.setdefault(int(calls.module[row]), []).append(row)
    return found


def _stages(sides: Sequence[Side]) -> list[int]:
    """Return the stage of each rank: ranks that send each other tensors and run other modules are stages of a pipeline."""
    sends = any(f"Distributed.{name}" in side.book.numbers for side in sides for name in ("send", "recv"))
    if not sends or len(sides) == 1:
        return [0] * len(sides)
    stages: dict[frozenset[int], int] = {}
    found: list[int] = []
    for side in sides:
        modules = side.calls.module[side.calls.kind == side.book.code("module")]
        found.append(stages.setdefault(frozenset(modules.tolist()), len(stages)))
    return found


def _lane_of_calls(side: Side) -> Ints:
    """Return the micro-batch of each call: that of the model's call around it, before it, or that it differentiates."""
    calls, book = side.calls, side.book
    begins = {row: number for rows in _outermost(side).values() for number, row in enumerate(rows)}
    backward, data = book.code("backward"), book.code("data")
    lane = np.zeros(len(calls), np.int64)
    current, waiting = 0, list[int]()
    for row in range(len(calls)):
        parent, forward = int(calls.parent[row]), int(calls.forward[row])
        if row in begins:
            current = begins[row]
            lane[waiting] = current
            waiting = []
        if calls.phase[row] == backward and forward >= 0:
            lane[row] = lane[forward]
        elif parent >= 0:
            lane[row] = lane[parent]
        else:
            lane[row] = current
            if calls.kind[row] == data:  # what enters the next call
                waiting.append(row)
    return lane
