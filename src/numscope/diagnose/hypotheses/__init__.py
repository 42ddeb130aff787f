"""Hypotheses: small named tests, each of which makes the target reproduce the reference by one change.

A hypothesis is a function that takes a case and yields repairs; the first repair that fits is the diagnosis. A new one
is a function of a few lines in the file of its family, or a file of its own named in FAMILIES:

    @hypothesis("sign")
    def sign(case: Case) -> Iterator[Repair]:
        yield Repair("the opposite sign", lambda: -case.given)
"""

from __future__ import annotations

import importlib

from numscope.diagnose.hypotheses.case import Case, Repair, registered

# In the order in which they are asked: the most specific first, and what fits almost anything last.
FAMILIES = (
    "arguments",
    "operands",
    "rope",
    "known",
    "constants",
    "reductions",
    "precision",
    "biases",
    "scale",
    "layout",
    "masks",
    "dropout",
    "calls",
)


def fitting(case: Case) -> Repair | None:
    """Return the first repair that makes the target reproduce the reference, or None."""
    for family in FAMILIES:
        importlib.import_module(f"numscope.diagnose.hypotheses.{family}")
    order = {family: place for place, family in enumerate(FAMILIES)}
    for _, test in sorted(registered(), key=lambda item: order[item[1].__module__.rpartition(".")[2]]):
        try:
            for repair in test(case):
                if case.fits(repair):
                    return repair
        except case.expected_errors:
            continue  # this hypothesis can't be asked here
    return None
