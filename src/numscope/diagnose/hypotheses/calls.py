"""Whole calls that one side has and the other has not: said when nothing more specific fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis
from numscope.diagnose.measures import relative
from numscope.diagnose.recorded import Call

_MOST = 6  # more calls than this are no repair


def removed_gives_target(case: Case, missing: Sequence[Call]) -> bool:
    """Tell whether the reference without these calls is the target."""
    if not case.target.calls:  # the target has nothing but what goes in
        return len(missing) == len(case.reference.calls)
    try:
        made = case.reference.run(case.reference_values, torch.float64, {call.order: None for call in missing})
    except case.expected_errors:
        return False
    return relative(made, case.given) <= max(1e-11, 25 * case.floor64)


@hypothesis("missing calls")
def missing_calls(case: Case) -> Iterator[Repair]:
    """The target lacks calls that the reference makes."""
    extra, missing = case.unpaired()
    if missing and not extra and len(missing) <= _MOST and removed_gives_target(case, missing):
        yield Repair(f"the calls that are missing: {_names(missing)}", lambda: case.wanted)


@hypothesis("extra calls")
def extra_calls(case: Case) -> Iterator[Repair]:
    """The target makes calls that the reference does not."""
    extra, missing = case.unpaired()
    if extra and not missing and len(extra) <= _MOST:
        left_out = {call.order: None for call in extra}
        yield Repair(
            "",
            lambda: case.edited(left_out) if case.reference.calls else case.wanted,
            sentence=f"equal to the reference without {_names(extra)}",
        )


def _names(calls: Sequence[Call]) -> str:
    return ", ".join(call.name for call in calls)
