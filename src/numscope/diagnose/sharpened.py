"""`ns.compare` of runs that kept tensors: where rounding is too coarse to decide, lockstep does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from numscope.compare.comparison import Asked, CompareOptions, Comparison
from numscope.compare.comparison import compare as compare_as_recorded
from numscope.compare.comparison import merge_parts as merge_parts_as_recorded
from numscope.compare.resolution import TYPICAL_FAULT
from numscope.core.job_files.regions import FILE
from numscope.core.report import Report
from numscope.store.reader import Run

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from numscope.diagnose.recorded.paired_step import PairedStep


@wraps(compare_as_recorded)
def compare(
    target: str | os.PathLike[str] | Run, reference: str | os.PathLike[str] | Run, **options: Unpack[CompareOptions]
) -> Comparison:
    """Compare two runs, by lockstep too where what was recorded cannot decide, and by what compiled regions show."""
    return sharpened(compare_as_recorded(target, reference, **options))


@wraps(merge_parts_as_recorded)
def merge_parts(
    target: str | os.PathLike[str] | Run,
    reference: str | os.PathLike[str] | Run,
    parts: Sequence[str | os.PathLike[str]],
    *,
    allow_incomplete: bool = False,
    **asked: Unpack[Asked],
) -> Comparison:
    """Return the comparison of which these are all the parts, by lockstep too where what was recorded cannot decide."""
    found = merge_parts_as_recorded(target, reference, parts, allow_incomplete=allow_incomplete, **asked)
    return sharpened(found)


def sharpened(comparison: Comparison) -> Comparison:
    """Return a comparison with what lockstep says, where it cannot tell a typical fault from rounding by itself.

    Where compiled regions differ and can be looked into, what they show decides.
    """
    if find_spec("torch") is None:
        return comparison
    if comparison.verdict == "diverged" and has_regions(comparison.target):
        from numscope.diagnose.regions.explain import with_regions

        return replace(comparison, report=with_regions(comparison, comparison.report))
    if not is_coarse(comparison.report):
        return comparison
    from numscope.diagnose.lockstep import lockstep
    from numscope.diagnose.recorded.paired_step import pair_step

    @cache
    def paired(step: int, rank: int) -> PairedStep:
        return pair_step(comparison, step, rank)

    return replace(comparison, report=lockstep(comparison, paired))


def has_regions(run: Run) -> bool:
    """Tell whether a run has compiled regions that can be looked into."""
    return any((Path(run.path) / f"rank{rank}" / FILE).exists() for rank in run.ranks)


def is_coarse(report: Report) -> bool:
    """Tell whether a typical fault could hide in what rounding explains, in an answer that finds none."""
    found = report.resolution
    if report.verdict not in ("equivalent", "incomplete") or found is None:
        return False
    return bool(found["largest"] > TYPICAL_FAULT)
