"""What diagnose found out about a suspect, and how one tensor follows from another."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from numscope.core.report import Origin
from numscope.core.words import Mechanism
from numscope.diagnose.hypotheses import fitting
from numscope.diagnose.hypotheses.case import Case
from numscope.diagnose.recorded.group import Group
from numscope.diagnose.recorded.step_graph import Record
from numscope.diagnose.replay.measures import relative, unit_roundoff


@dataclass
class Explanation:
    """What diagnose found out about a suspect."""

    mechanism: Mechanism
    repair: str | None = None
    reason: str = ""  # empty: the comparison's own reason stays
    details: dict[str, Any] = field(default_factory=dict)

    def on(self, origin: Origin) -> Origin:
        """Return the suspect with its mechanism and repair filled in."""
        return replace(
            origin,
            mechanism=self.mechanism,
            repair=self.repair,
            reason=self.reason or origin.reason,
            details={**origin.details, "diagnosis": self.details},
        )


def replace_details(found: Explanation, details: dict[str, Any]) -> Explanation:
    """Return an explanation with more details."""
    return Explanation(found.mechanism, found.repair, found.reason, {**details, **found.details})


def relation(ours: Record, number: int, theirs: Record, partner: int) -> str | None:
    """Return how one tensor follows from another: scaled, permuted, shifted, transposed; None where it does not."""
    if not (ours.kept(number) and theirs.kept(partner)):
        return None
    target, reference = Group(ours, (), (number,), number), Group(theirs, (), (partner,), partner)
    if ours.tensors[number].shape != theirs.tensors[partner].shape:
        return None
    lowest = unit_roundoff(ours.data(number).dtype)
    case = Case(target, reference, {}, {}, lowest, lowest)
    if relative(ours.data(number), theirs.data(partner)) <= lowest:
        return None
    found = fitting(case)
    return str(found).replace(" on the output", "").replace(" of the output", " of it") if found else None
