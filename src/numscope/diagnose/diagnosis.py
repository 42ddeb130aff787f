"""Diagnose: from where two runs stop agreeing to why, and what to change.

    report = ns.diagnose("runs/npu", "runs/gpu")
    report.origin.mechanism     # "semantic"
    report.origin.repair        # "equal to the reference with eps=1e-06 (now 1e-05) in Functional.layer_norm.3.forward"

The suspects of the comparison are replayed from their recorded inputs and arguments, on the CPU, in native precision,
float32 and float64, on both sides. What could not be replayed is said in the suspect's details.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from numscope.compare.comparison import Comparison, compare
from numscope.core.report import Origin, Report
from numscope.diagnose.explain.below_rounding import reveal
from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.explain.suspect import explain
from numscope.diagnose.recorded.pairing import Pairing, pairing
from numscope.store.reader import Run

SUSPECTS = 3  # how many are replayed


def diagnose(
    target: Comparison | str | os.PathLike[str] | Run,
    reference: str | os.PathLike[str] | Run | None = None,
    *,
    suspects: int = SUSPECTS,
    **settings: Any,
) -> Report:
    """Compare two runs (or take their comparison) and return the report with mechanism and repair filled in."""
    if isinstance(target, Comparison):
        comparison = target
    else:
        if reference is None:
            raise TypeError("diagnose needs two runs, target and reference, or a comparison")
        comparison = compare(target, reference, **settings)
    report = comparison.report
    if report.verdict == "equivalent":
        return reveal(comparison)
    if report.verdict != "diverged" or report.origin is None:
        return report
    known: dict[tuple[int, int], Pairing] = {}
    explained: dict[tuple[str, int, int], Origin] = {}
    for suspect in (report.origin, *report.suspects[:suspects]):
        key = (suspect.call, suspect.step, suspect.rank)
        if key not in explained:
            explained[key] = _explained(comparison, suspect, known).on(suspect)
    suspects_now = tuple(
        explained.get((suspect.call, suspect.step, suspect.rank), suspect) for suspect in report.suspects
    )
    origin = explained[report.origin.call, report.origin.step, report.origin.rank]
    return replace(report, origin=origin, suspects=suspects_now)


def _explained(comparison: Comparison, suspect: Origin, known: dict[tuple[int, int], Pairing]) -> Explanation:
    from numscope.diagnose.explain import without_replay

    key = (suspect.step, suspect.rank)
    if key not in known:
        known[key] = pairing(comparison, *key)
    pairs = known[key]
    try:
        found = without_replay.explain(pairs, suspect)
        if found is None and "paddle" in (
            record.run.manifest.get("framework") for record in (pairs.target, pairs.reference)
        ):
            told = "make Paddle's calls again, as it does torch's: what compare says is all that is known"
            return Explanation(suspect.mechanism, details={"could_not": told})
        return found if found is not None else explain(pairs, suspect)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, MemoryError) as error:
        # A replay runs the framework's code on whatever was recorded: a diagnosis that fails must not hide the report.
        return Explanation("unknown", details={"could_not": f"the replay failed: {type(error).__name__}: {error}"})
