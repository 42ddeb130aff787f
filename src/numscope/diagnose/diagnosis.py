"""Diagnose: from where two runs stop agreeing to why, and what to change.

    report = ns.diagnose("runs/npu", "runs/gpu")
    report.origin.mechanism     # "semantic"
    report.origin.repair        # "equal to the reference with eps=1e-06 (now 1e-05) in Functional.layer_norm.3.forward"

The suspects of the comparison are replayed from their recorded inputs and arguments, on the CPU, in native precision,
float32 and float64, on both sides. The details of a suspect say why it could not be replayed, where it could not.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from numscope.compare.comparison import CompareOptions, Comparison, compare
from numscope.compare.layouts.other_layout import differs
from numscope.core.report import Origin, Report
from numscope.diagnose.explain.calls import MOST_TENSORS
from numscope.diagnose.explain.explanation import Explanation, needs_tensors
from numscope.diagnose.explain.modules import DiagnoseRuns
from numscope.diagnose.explain.statistics_only import unknowable
from numscope.diagnose.explain.suspect import explain
from numscope.diagnose.lockstep import lockstep
from numscope.diagnose.recorded.paired_step import PairedStep, pair_step
from numscope.diagnose.regions.explain import with_regions
from numscope.diagnose.repairs.carried import carried_to_loss
from numscope.diagnose.repairs.fitted import in_other_steps
from numscope.diagnose.repairs.repaired import repaired
from numscope.store.reader import Run

if TYPE_CHECKING:
    from typing_extensions import Unpack

SUSPECTS = 3  # that are replayed


def diagnose(
    target: Comparison | str | os.PathLike[str] | Run,
    reference: str | os.PathLike[str] | Run | None = None,
    *,
    suspects: int = SUSPECTS,
    **options: Unpack[CompareOptions],
) -> Report:
    """Compare two runs (or take their comparison) and return the report with mechanism and repair filled in."""
    if isinstance(target, Comparison):
        comparison = target
    else:
        if reference is None:
            raise TypeError("diagnose needs two runs, target and reference, or a comparison")
        comparison = compare(target, reference, **options)
    runs = comparison.target, comparison.reference
    if options.get("ranks") is None and differs(runs):
        return _of_other_layouts(comparison, suspects)
    return with_regions(comparison, _explained(comparison, suspects, _diagnose_inside))


def _of_other_layouts(comparison: Comparison, suspects: int) -> Report:
    """Return the report of runs whose ranks were compared as one.

    A replay needs the calls of one rank: what a rank that both have tells of the same origin is added to the report.
    """
    report, runs = comparison.report, (comparison.target, comparison.reference)
    common = [rank for rank in runs[0].ranks if rank in runs[1].ranks]
    if report.origin is None or not common:
        return report
    beside = compare(*runs, ranks=common, allow_incomplete=True)
    first = beside.origin
    if first is None or (first.call, first.step) != (report.origin.call, report.origin.step):
        return report
    told = with_regions(beside, _explained(beside, suspects, _diagnose_inside)).origin
    if told is None:
        return report
    origin = replace(told, rank=report.origin.rank, reason=report.origin.reason)
    return replace(report, origin=origin, suspects=(origin, *report.suspects[1:]))


def _diagnose_inside(target: Path, reference: Path) -> Report:
    """Diagnose two captures of a module's inside, where every call is recorded: no module in there is replayed."""
    return _explained(compare(target, reference), SUSPECTS, None)


class _Suspect(NamedTuple):
    """The key of a suspect."""

    call: str
    step: int
    rank: int


def _explained(comparison: Comparison, suspects: int, diagnose_inside: DiagnoseRuns | None) -> Report:
    """Return the report of a comparison with its suspects explained."""
    report = comparison.report

    @cache
    def paired(step: int, rank: int) -> PairedStep:
        return pair_step(comparison, step, rank)

    if report.verdict in ("equivalent", "incomplete"):
        return lockstep(comparison, paired)
    if report.verdict != "diverged" or report.origin is None:
        return report
    explained: dict[_Suspect, Origin] = {}
    for suspect in (report.origin, *report.suspects[:suspects]):
        key = _key(suspect)
        if key not in explained:
            found = _explain(paired(suspect.step, suspect.rank), suspect, diagnose_inside)
            explained[key] = in_other_steps(comparison, paired, suspect, found).on(suspect)
    suspects_now = tuple(explained.get(_key(suspect), suspect) for suspect in report.suspects)
    origin = explained[_key(report.origin)]
    details = dict(report.details)
    if needs_tensors(origin):
        lack = unknowable(paired(origin.step, origin.rank), origin, MOST_TENSORS)
        details["unknowable"] = lack.to_dict()
    elif diagnose_inside is not None:
        origin = _tried_on_the_run(paired(origin.step, origin.rank), origin)
    return replace(report, origin=origin, suspects=suspects_now, details=details)


def _tried_on_the_run(pairs: PairedStep, origin: Origin) -> Origin:
    """Return an origin with how far its repair carries: to the loss and the gradients, or to the loss alone.

    What does not reproduce the call in the pass is no repair, though it does so on the reference's inputs.
    """
    found = repaired(pairs, origin) if origin.mechanism != "device" else None
    if found is None:
        told = carried_to_loss(pairs, origin)
        return origin if told is None else replace(origin, details={**origin.details, "carried": told.to_dict()})
    details = {**origin.details, "carried": found.to_dict()}
    if origin.repair is None or found.carries:
        return replace(origin, details=details)
    diagnosis = {**details["diagnosis"], "note": f"no repair, though it reproduces this call: {origin.repair}"}
    return replace(origin, repair=None, details={**details, "diagnosis": diagnosis})


def _key(suspect: Origin) -> _Suspect:
    return _Suspect(suspect.call, suspect.step, suspect.rank)


def _explain(pairs: PairedStep, suspect: Origin, diagnose_inside: DiagnoseRuns | None) -> Explanation:
    try:
        return explain(pairs, suspect, diagnose_inside)
    except MemoryError as error:  # the run is of a larger machine: the answer of the comparison still holds
        return Explanation.could_not(f"the replay failed: {type(error).__name__}: {error}")
