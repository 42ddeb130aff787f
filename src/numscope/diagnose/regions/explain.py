"""Puts what was found inside compiled regions into a report.

A wrong kernel or graph is the origin, with its line. Where all of a step's regions were examined and none is wrong, what
differs at their boundaries in that step is rounding.
"""

from __future__ import annotations

from dataclasses import replace

from numscope.compare.comparison import Comparison
from numscope.core.report import Origin, Report
from numscope.diagnose.regions.examine import Examined, Finding, examine
from numscope.diagnose.regions.recorded import RecordedRegions

_REGION_CLASSES = ("OptimizedModule",)


def with_regions(comparison: Comparison, report: Report) -> Report:
    """Return the report with what the target's compiled regions show, where it was captured with compiled="inside"."""
    found = {
        rank: examine(recorded)
        for rank in comparison.target.ranks
        if (recorded := RecordedRegions(comparison.target, rank)).found is not None
    }
    if not found:
        return report
    details = {**report.details, "compiled": {str(rank): one.to_dict() for rank, one in found.items()}}
    wrong = [(rank, finding) for rank, one in found.items() for finding in one.wrong]
    if not wrong and report.verdict == "diverged" and not any(one.lacks for one in found.values()):
        wrong = [(rank, finding) for rank, one in found.items() for finding in one.custom]
    if wrong:
        rank, finding = wrong[0]
        origin = _origin(report, rank, finding)
        rest = [_origin(report, rank, other) for rank, other in wrong[1:]]
        suspects = (origin, *rest, *(one for one in report.suspects if one is not report.origin))
        return replace(report, verdict="diverged", origin=origin, suspects=suspects, details=details, reason="")
    if report.verdict == "diverged" and all(_is_rounding(suspect, found) for suspect in report.suspects):
        kernels = sum(finding.kind == "kernel" for one in found.values() for finding in one.findings)
        steps = ", ".join(map(str, sorted({step for one in found.values() for step in one.steps})))
        reason = (
            f"in step {steps} each of {kernels} kernels is as near to float64 as rounding explains, and each graph is the "
            "program that it was made of: what differs at the compiled regions is rounding"
        )
        return replace(report, verdict="equivalent", origin=None, suspects=(), reason=reason, details=details)
    return replace(report, details=details)


def _origin(report: Report, rank: int, finding: Finding) -> Origin:
    """Return a finding as an origin: at the call where the comparison sees it, if it does."""
    seen = report.origin
    judged = finding.judged
    return Origin(
        call=seen.call if seen is not None else f"Compiled.{finding.region.replace(' ', '.')}",
        kind=seen.kind if seen is not None else "module",
        phase="backward" if finding.region.endswith("backward") else "forward",
        step=finding.step,
        rank=rank,
        reason=finding.sentence(),
        module=finding.module,
        source=finding.source(),
        mechanism="device",
        relative=finding.error,
        expected=max(judged.eager, judged.elided) if judged is not None else None,
        details={"diagnosis": {"region": finding.region, "operators": list(finding.operators)}},
    )


def _is_rounding(suspect: Origin, found: dict[int, Examined]) -> bool:
    """Tell whether a suspect is at a region's boundary, in a step whose regions were all examined."""
    examined = found.get(suspect.rank)
    if examined is None or examined.lacks or examined.custom or suspect.step not in examined.steps:
        return False
    return suspect.kind == "missing" or suspect.details.get("class") in _REGION_CLASSES
