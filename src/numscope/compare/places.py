"""The places of a comparison: the steps of ranks that both runs have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from numscope.compare.layouts.other_layout import ALL_RANKS, differs, whole_steps_of
from numscope.compare.steps import Place
from numscope.store.reader import Run

Chosen = int | Iterable[int] | None  # steps or ranks; None: all


@dataclass(frozen=True)
class Common:
    """The places that are compared, and what is not."""

    both: list[Place]
    skipped: dict[str, int]
    steps: set[int] | None  # that the user chose
    ranks: set[int] | None


def _chosen(wanted: Chosen) -> set[int] | None:
    if wanted is None:
        return None
    return {wanted} if isinstance(wanted, int) else set(wanted)


def common_places(runs: tuple[Run, Run], steps: Chosen, ranks: Chosen) -> Common:
    """Return the steps and ranks that both runs have, steps first; the others are counted."""
    only_steps, only_ranks = _chosen(steps), _chosen(ranks)
    if only_ranks is None and differs(runs):
        return _of_all_ranks(runs, only_steps)
    in_target, in_reference = (_places(run, only_steps, only_ranks) for run in runs)
    skipped = {}
    for label, own, others in (("target", in_target, in_reference), ("reference", in_reference, in_target)):
        if alone := len(own - others):
            what = "steps of ranks" if any(len(run.ranks) > 1 for run in runs) else "steps"
            skipped[f"{what} that only the {label} has"] = alone
    for label, run in zip(("target", "reference"), runs):
        for reason, count in run.skipped().items():
            skipped[f"{label}: {reason}"] = count
    return Common(sorted(in_target & in_reference), skipped, only_steps, only_ranks)


def _of_all_ranks(runs: tuple[Run, Run], chosen: set[int] | None) -> Common:
    """Return the steps that all ranks of both runs completed, each as one place."""
    target, reference = (whole_steps_of(run) for run in runs)
    skipped = {}
    for label, alone in (("target", target - reference), ("reference", reference - target)):
        if count := len({step for step in alone if chosen is None or step in chosen}):
            skipped[f"steps that only the {label} has"] = count
    for label, run in zip(("target", "reference"), runs):
        for reason, count in run.skipped().items():
            skipped[f"{label}: {reason}"] = count
    both = [Place(step, ALL_RANKS) for step in sorted(target & reference) if chosen is None or step in chosen]
    return Common(both, skipped, chosen, None)


def _places(run: Run, steps: set[int] | None, ranks: set[int] | None) -> set[Place]:
    """Return the chosen steps and ranks that a run has, those that were not completed included."""
    there = {Place(step, rank) for rank in run.ranks for step in run.rank_steps(rank)}
    there |= {Place(step, rank) for rank, step in run.incomplete}
    return {one for one in there if (steps is None or one.step in steps) and (ranks is None or one.rank in ranks)}
