"""Compares the ranks one after the other in this process, and the steps of each in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from numscope.compare.judge.findings import History
from numscope.compare.parts.results import Results
from numscope.compare.steps import Place, judge_step, measure_step
from numscope.compare.thresholds import Thresholds
from numscope.store.reader import Run

if TYPE_CHECKING:
    from numscope.compare.align.map_file import Map


def compare_all(
    runs: tuple[Run, Run],
    noise: list[Run],
    places: Sequence[Place],
    mapping: Map | None,
    thresholds: Thresholds,
    progress: Callable[[int, int], None] | None,
    results: Results,
) -> None:
    """Compare every (step, rank); what a rank's earlier steps show enters the verdicts of its later ones."""
    done = 0
    for rank in sorted({place.rank for place in places}):
        history = History()
        for step in sorted(place.step for place in places if place.rank == rank):
            results.add(judge_step(runs, measure_step(runs, noise, step, rank, mapping), thresholds, history))
            done += 1
            if progress is not None:
                progress(done, len(places))
        for run in (*runs, *noise):
            run.forget(rank)
