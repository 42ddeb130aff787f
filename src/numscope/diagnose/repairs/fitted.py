"""A number that was fitted to one step is tried in the others: a factor that holds once describes an error, no cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from numscope.compare.comparison import Comparison
from numscope.core.errors import NotKeptError
from numscope.core.report import Origin
from numscope.diagnose.explain.calls import fits_in
from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.paired_step import PairedStep

MOST_STEPS = 8  # in which it is tried


def in_other_steps(
    comparison: Comparison, paired: Callable[[int, int], PairedStep], origin: Origin, found: Explanation
) -> Explanation:
    """Return an explanation without a fitted repair that another step refutes; else with the steps in which it holds."""
    if found.fitted is None or found.repair is None:
        return found
    held = [origin.step]
    for step in other_steps(comparison, origin):
        try:
            holds = fits_in(paired(step, origin.rank), replace(origin, step=step, relative=None), found.fitted)
        except (CannotReplay, NotKeptError):
            continue
        if holds is False:
            return refuted(found, origin.step, step)
        if holds:
            held.append(step)
    return held_in(found, held)


def other_steps(comparison: Comparison, origin: Origin) -> list[int]:
    """Return the other steps that both runs recorded of an origin's rank, those nearest to it."""
    ours, theirs = (run.rank_steps(origin.rank) for run in (comparison.target, comparison.reference))
    common = [step for step in ours if step in theirs and step != origin.step]
    return sorted(sorted(common, key=lambda step: abs(step - origin.step))[:MOST_STEPS])


def refuted(found: Explanation, here: int, there: int) -> Explanation:
    """Return an explanation whose repair holds in one step and not in another: that is none."""
    note = f"no repair, as it holds in step {here} and not in step {there}: {found.repair}"
    return replace(found, repair=None, details={**found.details, "note": note})


def held_in(found: Explanation, steps: list[int]) -> Explanation:
    """Return an explanation with the steps in which its repair holds."""
    told = f"steps {', '.join(map(str, sorted(steps)))}" if len(steps) > 1 else f"step {steps[0]} alone"
    return replace(found, details={**found.details, "tried": {"steps": sorted(steps), "sentence": f"tried in {told}"}})
