"""The usual other values of an argument, tried where the other side has no such argument to compare with.

Tried on the target, and on the reference the other way round: where the reference with approximate='tanh' is the
target, the target computes the tanh form.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from numscope.diagnose.hypotheses.arguments import with_defaults
from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis, operator, text
from numscope.diagnose.recorded.invocation import Invocation
from numscope.diagnose.replay.measures import relative

USUAL: dict[str, tuple[Any, ...]] = {
    "eps": (1e-3, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12, 0.0),
    "approximate": ("none", "tanh"),
    "is_causal": (True, False),
    "reduction": ("mean", "sum", "none"),
    "training": (False,),
    "align_corners": (True, False),
    "label_smoothing": (0.0, 0.1),
    "ignore_index": (-100, 0, -1),
    "keepdim": (True, False),
    "unbiased": (True, False),
    "correction": (0, 1),
    "rounding_mode": (None, "floor", "trunc"),
    "interleaved": (True, False),
}
_WORDS = {"approximate": "the {} form of GELU", "is_causal": "{}"}


def _variants(made: Invocation) -> Iterator[tuple[str, Any, Any, Invocation]]:
    named = with_defaults(made)
    for name, values in USUAL.items():
        if name in named:
            for value in values:
                if value != named[name]:
                    yield name, named[name], value, made.changed(name, value)


@hypothesis("usual value")
def usual_value(case: Case) -> Iterator[Repair]:
    """Change one argument of one of the target's calls to another usual value."""
    for order, made in case.target_calls.items():
        for name, now, value, edited in _variants(made):
            change = f"{name}={text(value)} (now {text(now)}) in {made.call.name}"
            yield Repair(change, lambda order=order, edited=edited: case.edited({order: edited}))  # type: ignore[misc]


@hypothesis("usual value of the reference")
def usual_value_reversed(case: Case) -> Iterator[Repair]:
    """Change one argument of one of the reference's calls: if that gives the target, the target has that value."""
    for order, made in case.reference_calls.items():
        for name, then, value, edited in _variants(made):
            if not reproduces_target(case, {order: edited}):
                continue
            change = f"{name}={text(then)} as in {made.call.head} (now {text(value)}, in other calls)"
            if name == "approximate":
                forms = {"none": "erf", "tanh": "tanh"}
                change = f"GELU's {forms[then]} form, approximate={text(then)} (now the {forms[value]} form)"
            yield Repair(change, lambda: case.wanted)


def reproduces_target(case: Case, edits: dict[int, Invocation | None]) -> bool:
    """Tell whether the reference with some of its calls changed gives what the target gives."""
    try:
        made = case.reference.run(case.reference_values, torch.float64, edits)
    except case.expected_errors:
        return False
    after = relative(made, case.given)
    # A constant that was written out by hand has fewer digits: 0.044715, √(2/π) as 0.7978845608.
    return after <= max(1e-9, 25 * case.floor64) and after < case.before / 20


def involves(case: Case, *names: str) -> bool:
    """Tell whether one of the groups has an operator of these names."""
    return any(operator(call) in names for call in (*case.target.calls, *case.reference.calls))
