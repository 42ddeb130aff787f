"""Calls that only the reference has and that have a common name: soft cap, normalisation, padding …"""

from __future__ import annotations

from collections.abc import Iterator

from numscope.diagnose.hypotheses.calls import removed_gives_target
from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis
from numscope.diagnose.hypotheses.wording import spoken, value_words
from numscope.diagnose.recorded.invocation import Invocation, holds_tensor


@hypothesis("soft cap")
def soft_cap(case: Case) -> Iterator[Repair]:
    """Apply the soft cap c·tanh(x/c), which only the reference has."""
    missing = case.unmatched().missing
    names = {call.operator for call in missing}
    if "tanh" not in names or not names <= {"tanh", "div", "mul"}:
        return
    cap = next((_number(case.reference_calls[c.order]) for c in missing if c.operator in ("div", "mul")), None)
    if cap is not None and removed_gives_target(case, missing):
        yield Repair(f"the soft cap {cap:g}·tanh(x/{cap:g})", lambda: case.reference_output)


@hypothesis("normalised")
def normalised(case: Case) -> Iterator[Repair]:
    """Divide by the sum, as only the reference does."""
    missing = case.unmatched().missing
    names = {call.operator for call in missing}
    if {"sum", "div"} <= names and len(missing) == 2 and removed_gives_target(case, missing):
        yield Repair("the division by the sum, which normalises to one", lambda: case.reference_output)


@hypothesis("missing factor")
def missing_factor(case: Case) -> Iterator[Repair]:
    """Multiply or divide by a number, as only the reference does."""
    missing = case.unmatched().missing
    if len(missing) != 1 or missing[0].operator not in ("mul", "div"):
        return
    number = _number(case.reference_calls[missing[0].order])
    if number is not None and removed_gives_target(case, missing):
        verb = "times" if missing[0].operator == "mul" else "divided by"
        yield Repair(f"the scale factor that is missing: {verb} {spoken(number)}", lambda: case.reference_output)


@hypothesis("slice")
def sliced(case: Case) -> Iterator[Repair]:
    """Take a slice, as only the reference does, to leave out padding."""
    missing = case.unmatched().missing
    if len(missing) != 1 or missing[0].operator not in ("getitem", "narrow", "slice"):
        return
    made = case.reference_calls[missing[0].order]
    if any(holds_tensor(value) for value in made.args[1:]):
        return  # an index that is a tensor selects something else than padding
    shown = ", ".join(value_words(value).strip("[]") for value in made.args[1:])
    if removed_gives_target(case, missing):
        yield Repair(f"the slice [{shown}] that leaves the padding out", lambda: case.reference_output)


def _number(made: Invocation) -> float | None:
    for value in made.args:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return None
