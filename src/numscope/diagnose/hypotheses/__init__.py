"""Hypotheses: small named tests, each of which makes the target reproduce the reference by one change.

A hypothesis is a function that takes a case and yields repairs; the first repair that fits is the diagnosis. A new one
is a function of a few lines in the file of its family, or a file of its own named in FAMILIES:

    @hypothesis("sign")
    def sign(case: Case) -> Iterator[Repair]:
        yield Repair("the opposite sign", lambda: -case.target_output)
"""

from __future__ import annotations

import importlib

from numscope.diagnose.hypotheses.case import NOT_APPLICABLE, Case, Repair, registered

# In the order in which they are tried: the most specific first, those that fit almost anything last.
FAMILIES = (
    "arguments",
    "rope",
    "missing_idioms",
    "usual_values",
    "replaced_operator",
    "precision",
    "scale_and_bias",
    "layout",
    "masks",
    "dropout",
    "calls",
)


def fitting(case: Case) -> Repair | None:
    """Return the first repair that makes the target reproduce the reference, or None."""
    for family in FAMILIES:
        importlib.import_module(f"numscope.diagnose.hypotheses.{family}")
    for entry in sorted(registered(), key=lambda entry: FAMILIES.index(entry.family)):
        try:
            for repair in entry.test(case):
                if case.fits(repair):
                    return repair
        except NOT_APPLICABLE:
            continue  # this hypothesis does not apply to the case
    return None
