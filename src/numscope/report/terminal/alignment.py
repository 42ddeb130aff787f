"""Prints why calls were paired: a line per pair that is no matter of course, and the calls that only one side has."""

from __future__ import annotations

from typing import TextIO

from numscope.compare.comparison import Comparison
from numscope.core.language.chinese import translated
from numscope.core.untrusted import shown

_WHY = {
    "path": "same module path",
    "sequence": "same operator at the same place",
    "value": "same values",
    "map": "the map file says so",
    "doubtful": "same operator in order; doubtful, so no verdict rests on it",
    "": "no counterpart",
}


def print_alignment(comparison: Comparison, stream: TextIO) -> None:
    """Print why calls were paired: those with the same name at the same place are counted, all others listed."""
    columns = ["step", "rank", "target_name", "reference_name", "alignment", "confidence"]
    last = None
    trivial = 0
    for row in comparison.calls.select(columns).to_pylist():
        why = "doubtful" if row["confidence"] == "doubtful" else row["alignment"]
        if row["target_name"] == row["reference_name"] and why in ("path", "sequence"):
            trivial += 1
            continue
        step, rank = row["step"], row["rank"]
        if (step, rank) != last:
            print(translated(f"step {step}, rank {rank}"), file=stream)
            last = (step, rank)
        target, reference = row["target_name"] or "—", row["reference_name"] or "—"
        both = target if target == reference else f"{target}  ↔  {reference}"
        print(f"  {shown(both)}  ({translated(_WHY[why])})", file=stream)
    print(translated(f"{trivial} calls are paired with the same name at the same place"), file=stream)
    print(file=stream)
