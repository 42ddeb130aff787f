"""Finds faults that hide in rounding: in bf16 a wrong GELU differs less than a benign order of sums.

No threshold tells the two apart, so a comparison calls both equivalent. But where two paired calls have different
arguments, the lift test tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from numscope.compare.comparison import Comparison
from numscope.core.errors import NotKeptError
from numscope.core.report import Origin, Report, Source
from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.paired_step import CallPair, MatchedOrders, PairedStep, call_pairs
from numscope.diagnose.replay.lift import Lift

_MOST = 20  # calls that are lift-tested
_KINDS = pa.array(["api", "aten"])
_FLOORS = 8.0  # noise floors: a larger difference does not hide in rounding


def reveal(
    comparison: Comparison,
    paired: Callable[[int, int], PairedStep],
    explain_call: Callable[[PairedStep, Origin], Explanation],
) -> Report:
    """Return the report of two equivalent runs, or one that names the first call that means something else.

    `paired` gives the paired step of a step and rank.
    """
    calls = comparison.calls
    chosen = calls.filter(
        pc.and_(
            pc.and_(pc.is_valid(calls["arguments_differ"]), pc.is_in(calls["kind"], value_set=_KINDS)),
            pc.and_(pc.is_valid(calls["target_order"]), pc.is_valid(calls["reference_order"])),
        )
    )
    for pair in call_pairs(chosen.slice(0, _MOST)):
        if not pair.error_out or pair.expected is None or pair.error_out > pair.expected:
            continue  # equal, or so far apart that the two calls do different things
        pairs = paired(pair.step, pair.rank)
        if pair.matched is None or not _same_inputs(pairs, pair.matched):
            continue
        origin = _origin(pair)
        try:
            found = explain_call(pairs, origin)
        except (CannotReplay, NotKeptError):
            continue
        if found.mechanism == "semantic" and found.repair and found.lift is not None and _hides(found.lift):
            reason = (
                f"{pair.target_name}: {pair.arguments_differ}; the difference of {pair.error_out:.2g} hides in "
                f"rounding, but stays {found.lift.float64 or 0:.2g} in float64"
            )
            named = replace(found.on(origin), reason=reason)
            return replace(comparison.report, verdict="diverged", origin=named, suspects=(named,), reason=reason)
    return comparison.report


def _hides(lift: Lift) -> bool:
    """Tell whether the two calls differ by no more than rounding on the same inputs."""
    return lift.native is not None and lift.native <= _FLOORS * lift.floor


def _same_inputs(pairs: PairedStep, orders: MatchedOrders) -> bool:
    """Tell whether two paired calls have the same tensors in the same slots."""
    ours = pairs.target.slots(orders.target, "input", "kwargs")
    theirs = pairs.reference.slots(orders.reference, "input", "kwargs")
    return ours.keys() == theirs.keys() and all(
        mine is not None and other is not None and pairs.same(mine, other)
        for mine, other in ((number, theirs[slot]) for slot, number in ours.items())
    )


def _origin(pair: CallPair) -> Origin:
    source = Source(pair.source_file, pair.source_line or 0) if pair.source_file else None
    return Origin(
        call=pair.target_name or "",
        kind="aten" if pair.kind == "aten" else "api",
        phase=pair.phase,
        step=pair.step,
        rank=pair.rank,
        reason="",
        module=pair.module or "",
        source=source,
        relative=pair.error_out,
        expected=pair.expected,
    )
