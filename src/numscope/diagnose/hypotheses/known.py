"""Calls that only the reference has, by the names that people have for them."""

from __future__ import annotations

from collections.abc import Iterator

from numscope.diagnose.hypotheses.arguments import holds_given
from numscope.diagnose.hypotheses.calls import removed_gives_target
from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis, operator, text
from numscope.diagnose.hypotheses.numbers import spoken
from numscope.diagnose.recorded.invocation import Invocation


@hypothesis("soft cap")
def soft_cap(case: Case) -> Iterator[Repair]:
    """c·tanh(x/c) is there in the reference and not in the target."""
    _, missing = case.unpaired()
    names = {operator(call) for call in missing}
    if "tanh" not in names or not names <= {"tanh", "div", "mul"}:
        return
    cap = next((_number(case.reference_calls[c.order]) for c in missing if operator(c) in ("div", "mul")), None)
    if cap is not None and removed_gives_target(case, missing):
        yield Repair(f"the soft cap {cap:g}·tanh(x/{cap:g})", lambda: case.wanted)


@hypothesis("normalised")
def normalised(case: Case) -> Iterator[Repair]:
    """The reference divides by the sum."""
    _, missing = case.unpaired()
    names = {operator(call) for call in missing}
    if {"sum", "div"} <= names and len(missing) == 2 and removed_gives_target(case, missing):
        yield Repair("the division by the sum, which normalises to one", lambda: case.wanted)


@hypothesis("missing factor")
def missing_factor(case: Case) -> Iterator[Repair]:
    """The reference multiplies or divides by a number."""
    _, missing = case.unpaired()
    if len(missing) != 1 or operator(missing[0]) not in ("mul", "div"):
        return
    number = _number(case.reference_calls[missing[0].order])
    if number is not None and removed_gives_target(case, missing):
        verb = "times" if operator(missing[0]) == "mul" else "divided by"
        yield Repair(f"the scale factor that is missing: {verb} {spoken(number)}", lambda: case.wanted)


@hypothesis("slice")
def sliced(case: Case) -> Iterator[Repair]:
    """The reference takes a part: padding is left out."""
    _, missing = case.unpaired()
    if len(missing) != 1 or operator(missing[0]) not in ("getitem", "narrow", "slice"):
        return
    made = case.reference_calls[missing[0].order]
    if any(holds_given(value) for value in made.args[1:]):
        return  # chosen by a tensor: that is no padding
    shown = ", ".join(text(value).strip("[]") for value in made.args[1:])
    if removed_gives_target(case, missing):
        yield Repair(f"the slice [{shown}] that leaves the padding out", lambda: case.wanted)


def _number(made: Invocation) -> float | None:
    for value in made.args:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return None
