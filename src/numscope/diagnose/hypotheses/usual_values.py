"""The usual values of an argument, tried where the other run has no such argument to compare with.

They are tried on the target, and on the reference too: if the reference gives the target's output with
approximate='tanh', the target computes the tanh form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis
from numscope.diagnose.hypotheses.wording import value_words
from numscope.diagnose.recorded.invocation import Invocation

USUAL: dict[str, tuple[object, ...]] = {
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


@dataclass(frozen=True)
class Variant:
    """A call with another usual value of one argument."""

    name: str
    recorded: object
    usual: object
    invocation: Invocation


def _variants(made: Invocation) -> Iterator[Variant]:
    named = made.with_defaults()
    for name, values in USUAL.items():
        if name in named:
            for value in values:
                if value != named[name]:
                    yield Variant(name, named[name], value, made.changed(name, value))


@hypothesis("usual value")
def usual_value(case: Case) -> Iterator[Repair]:
    """Change one argument of one of the target's calls to another usual value."""
    for order, made in case.target_calls.items():
        for variant in _variants(made):
            now, usual = value_words(variant.recorded), value_words(variant.usual)
            change = f"{variant.name}={usual} (now {now}) in {made.call.name}"
            yield Repair(change, partial(case.edited, {order: variant.invocation}))


@hypothesis("usual value of the reference")
def usual_value_reversed(case: Case) -> Iterator[Repair]:
    """Change one argument of one of the reference's calls: if that gives the target, the target has that value."""
    for order, made in case.reference_calls.items():
        for variant in _variants(made):
            # Constants in code written by hand have few digits, such as 0.044715, or 0.7978845608 for √(2/π).
            error = case.error_of_reference({order: variant.invocation})
            if error is None or error > max(1e-9, 25 * case.floor64) or error >= case.error / 20:
                continue
            then, usual = value_words(variant.recorded), value_words(variant.usual)
            change = f"{variant.name}={then} as in {made.call.head} (now {usual}, in other calls)"
            if variant.name == "approximate":
                forms = {"none": "erf", "tanh": "tanh"}
                form, other = forms[str(variant.recorded)], forms[str(variant.usual)]
                change = f"GELU's {form} form, approximate={then} (now the {other} form)"
            yield Repair(change, lambda: case.reference_output)
