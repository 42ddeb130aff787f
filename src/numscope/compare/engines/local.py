"""Compares the steps one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from numscope.compare.judge.findings import History
from numscope.compare.steps import Place, StepResult, judge_step, measure_step
from numscope.compare.thresholds import Thresholds
from numscope.store.reader import Run

if TYPE_CHECKING:
    from numscope.compare.align.map_file import Map


def compare_all(
    runs: tuple[Run, Run],
    noise: list[Run],
    steps: Sequence[Place],
    mapping: Map | None,
    thresholds: Thresholds,
    progress: Callable[[int, int], None] | None,
) -> Iterator[StepResult]:
    """Compare every (step, rank), in order; the history of a rank's earlier steps enters the verdicts of its later ones."""
    histories: dict[int, History] = {}
    for number, (step, rank) in enumerate(steps):
        history = histories.setdefault(rank, History())
        yield judge_step(runs, measure_step(runs, noise, step, rank, mapping), thresholds, history)
        if progress is not None:
            progress(number + 1, len(steps))
