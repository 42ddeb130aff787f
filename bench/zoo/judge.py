"""Capture the two variants of one case, compare them, and hold the report against the truth."""

from __future__ import annotations

import math
import re
import shutil
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.zoo import execute
from bench.zoo.catalogue import Case
from bench.zoo.truth import accepts, leads_to_cause, lines, names_second

VARIANTS = ("target", "reference")
_MOST_SUSPECTS = 5  # that a reader looks at
TOLERANCE = 2e-2  # values of a control may differ by what bf16 does to a loss


def plain_outcome(case: Case, folder: Path) -> dict[str, Any]:
    """Return whether the two variants differ as they should, without numscope."""
    start = time.perf_counter()
    try:
        values = [execute.plain(case, variant, folder / f"{case.name}.{variant}.log") for variant in VARIANTS]
    except execute.ScriptError as error:
        return {"case": case.name, "control": case.control, "error": str(error), "right": False}
    difference = relative_difference(*values)
    right = difference <= TOLERANCE if case.control else difference > 0
    marked = case.truth is None or all(
        answer.marker is None or lines(case.script, answer.marker) for answer in case.truth.answers
    )
    return {
        "case": case.name,
        "control": case.control,
        "difference": difference if math.isfinite(difference) else str(difference),
        "values": [[value if math.isfinite(value) else str(value) for value in side] for side in values],
        "right": right and marked,
        "seconds": time.perf_counter() - start,
    }


def relative_difference(target: Sequence[float], reference: Sequence[float]) -> float:
    """Return the largest relative difference of two lists of values; infinite where only one is finite."""
    if len(target) != len(reference):
        return math.inf
    worst = 0.0
    for one, other in zip(target, reference, strict=True):
        if math.isfinite(one) != math.isfinite(other):
            return math.inf
        if one != other and math.isfinite(one):
            worst = max(worst, abs(one - other) / max(abs(other), 1e-30))
    return worst


def outcome(
    case: Case, folder: Path, options: Sequence[str], *, diagnose: bool, erase: bool, reuse: bool
) -> dict[str, Any]:
    """Capture, compare, judge; a failure is a result too."""
    result: dict[str, Any] = {"case": case.name, "control": case.control, "detected": False}
    start = time.perf_counter()
    runs = [folder / f"{case.name}.{variant}" for variant in VARIANTS]
    try:
        for variant, run in zip(VARIANTS, runs, strict=True):
            if reuse and run.exists():
                continue
            shutil.rmtree(run, ignore_errors=True)
            execute.captured(case, variant, run, [*options, *case.options], folder / f"{case.name}.{variant}.log")
        result["capture_seconds"] = time.perf_counter() - start
        report = _report(runs, diagnose)
        result |= _verdicts(case, report)
        (folder / f"{case.name}.report.json").write_text(_json(report))
    except Exception as error:
        result |= {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-2000:]}
    finally:
        if erase or ("error" in result and "capture_seconds" not in result):
            for run in runs:
                shutil.rmtree(run, ignore_errors=True)
    result["seconds"] = time.perf_counter() - start
    return result


def _report(runs: Sequence[Path], diagnose: bool) -> dict[str, Any]:
    import numscope

    comparison = numscope.compare(runs[0], runs[1])
    if not diagnose:
        return comparison.report.to_dict()
    from numscope.diagnose.diagnosis import diagnose as explain

    return explain(comparison).to_dict()


def _json(report: dict[str, Any]) -> str:
    import json

    return json.dumps(report, indent=1)


def _verdicts(case: Case, report: dict[str, Any]) -> dict[str, Any]:
    verdict, suspects = report["verdict"], report["suspects"][:3]
    if case.truth is None:
        return {
            "verdict": verdict,
            "detected": verdict not in case.verdicts,
            "predicted": _words(report["origin"]),
            "reason": (report["origin"] or {}).get("reason", report.get("reason", "")),
            "mechanism": (report["origin"] or {}).get("mechanism"),
            "repair": (report["origin"] or {}).get("repair"),
        }
    truth, origin = case.truth, report["origin"] or {}
    right = [accepts(truth, suspect, case.script) for suspect in suspects]
    first = bool(origin) and accepts(truth, origin, case.script)
    repair = origin.get("repair")
    asked: dict[str, Any] = {}
    if truth.second:
        asked["second"] = names_second(truth, report["suspects"][:_MOST_SUSPECTS], case.script)
    if truth.chain:
        asked |= {"chain": origin.get("chain"), "chain_right": leads_to_cause(truth, origin, case.script)}
    return asked | {
        "verdict": verdict,
        "detected": verdict == "diverged",
        "rank1": first,
        "rank3": first or any(right),
        "predicted": _words(report["origin"]),
        "suspects": [_words(suspect) for suspect in suspects],
        "reason": origin.get("reason", ""),
        "true": truth_words(case),
        "mechanism": origin.get("mechanism"),
        "mechanism_right": first and origin.get("mechanism") in truth.mechanisms,
        "repair": repair,
        "repair_expected": bool(truth.repair),
        "repair_right": first
        and bool(repair)
        and any(re.search(pattern, repair, re.IGNORECASE) for pattern in truth.repair),
    }


def _words(origin: dict[str, Any] | None) -> str:
    if not origin:
        return ""
    source = origin["source"]
    where = f" {Path(source['file']).name}:{source['line']}" if source else ""
    place = f" in {origin['module']}" if origin["module"] else ""
    return f"{origin['kind']} {origin['call']}{place} step {origin['step']} rank {origin['rank']}{where}"


def truth_words(case: Case) -> str:
    """Return the best answer of a case in a few words."""
    assert case.truth is not None
    best = case.truth.answers[0]
    kinds = "/".join(best.kinds) or "call"
    where = sorted(lines(case.script, best.marker)) if best.marker else []
    place = f" in {best.module}" if best.module else ""
    return f"{kinds} {best.call}{place}" + (f" line {'/'.join(map(str, where))}" if where else "")
