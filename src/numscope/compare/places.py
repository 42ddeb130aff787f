"""The places of a comparison: the steps of ranks that both runs have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from numscope.compare.layouts.other_layout import ALL_RANKS, differs, whole_steps_of
from numscope.compare.parts.shares import Share
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


def common_places(runs: tuple[Run, Run], steps: Chosen, ranks: Chosen, part: Share | None = None) -> Common:
    """Return the steps and ranks that both runs have, steps first; the others are counted.

    Of a part, those of its share of the ranks alone: nothing is read of the others.
    """
    only_steps, only_ranks = _chosen(steps), _chosen(ranks)
    target, reference = runs
    shared = sorted({rank for rank in target.ranks if rank in reference.ranks} & (only_ranks or set(target.ranks)))
    wanted = only_ranks if part is None else set(part.of_all(shared))
    if only_ranks is None and differs(runs, wanted):
        whole = _of_all_ranks(runs, only_steps)
        return whole if part is None or part.number == 1 else replace(whole, both=[])
    in_target, in_reference = (_places(run, only_steps, wanted) for run in runs)
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
    chosen = [rank for rank in run.ranks if ranks is None or rank in ranks]
    there = {Place(step, rank) for rank in chosen for step in run.written_steps(rank)}
    return {one for one in there if steps is None or one.step in steps}
