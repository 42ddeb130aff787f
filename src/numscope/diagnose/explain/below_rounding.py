"""Faults that hide in rounding: in bf16 a wrong GELU differs less than a benign order of sums.

No threshold tells the two apart, so a comparison calls both equivalent. But where two paired calls were given other
arguments, the lift test can be asked of them, and it does tell.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow.compute as pc

from numscope.compare.comparison import Comparison
from numscope.core.report import Origin, Report, Source
from numscope.diagnose.explain.suspect import explain
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.pairing import Pairing, pairing
from numscope.diagnose.recorded.step_graph import NotKept

_MOST = 20  # calls that are asked
_KINDS = ("api", "aten")
_FLOORS = 8.0  # a difference of more floors than this would have been seen


def reveal(comparison: Comparison) -> Report:
    """Return the report of two equivalent runs, or one that names the first call that means something else."""
    calls = comparison.calls
    asked = calls.filter(
        pc.and_(
            pc.and_(pc.is_valid(calls["arguments_differ"]), pc.is_in(calls["kind"], value_set=_strings(_KINDS))),
            pc.and_(pc.is_valid(calls["target_order"]), pc.is_valid(calls["reference_order"])),
        )
    )
    known: dict[tuple[int, int], Pairing] = {}
    for row in asked.slice(0, _MOST).to_pylist():
        if not row["error_out"] or row["expected"] is None or row["error_out"] > row["expected"]:
            continue  # equal, or so far apart that the two calls were not meant to do the same
        key = (row["step"], row["rank"])
        if key not in known:
            known[key] = pairing(comparison, *key)
        if not _given_the_same(known[key], row):
            continue
        origin = _origin(row)
        try:
            found = explain(known[key], origin)
        except (CannotReplay, NotKept, RuntimeError, ValueError, TypeError):
            continue
        lift = found.details.get("lift") or {}
        if found.mechanism == "semantic" and found.repair and _hides(lift):
            reason = (
                f"{row['target_name']}: {row['arguments_differ']}; the difference of {row['error_out']:.2g} hides in "
                f"rounding, but stays {lift.get('float64') or 0:.2g} in float64"
            )
            named = replace(found.on(origin), reason=reason)
            return replace(comparison.report, verdict="diverged", origin=named, suspects=(named,), reason=reason)
    return comparison.report


def _hides(lift: dict[str, Any]) -> bool:
    """Tell whether the two calls, given the same, differ by no more than rounding does: else nothing is hidden."""
    return lift.get("native") is not None and lift["native"] <= _FLOORS * lift["floor"]


def _given_the_same(pairs: Pairing, row: dict[str, Any]) -> bool:
    """Tell whether two paired calls were given the same tensors in the same places."""
    groups = ("input", "kwargs")
    ours = pairs.target.slots(row["target_order"], *groups)
    theirs = pairs.reference.slots(row["reference_order"], *groups)
    return ours.keys() == theirs.keys() and all(
        number is not None and theirs[slot] is not None and pairs.same(number, theirs[slot])  # type: ignore[arg-type]
        for slot, number in ours.items()
    )


def _origin(row: dict[str, Any]) -> Origin:
    source = Source(row["source_file"], row["source_line"] or 0) if row["source_file"] else None
    return Origin(
        call=row["target_name"],
        kind=row["kind"],
        phase=row["phase"],
        step=row["step"],
        rank=row["rank"],
        reason="",
        module=row["module"] or "",
        source=source,
        relative=row["error_out"],
        expected=row["expected"],
    )


def _strings(words: tuple[str, ...]) -> Any:
    import pyarrow as pa

    return pa.array(words)
