"""How a tensor of the target follows from its counterpart in the reference: scaled, permuted, shifted, transposed."""

from __future__ import annotations

from numscope.diagnose.hypotheses import fitting
from numscope.diagnose.hypotheses.case import Case
from numscope.diagnose.recorded.paired_step import PairedStep
from numscope.diagnose.recorded.subgraph import Subgraph
from numscope.diagnose.replay.measures import relative_error, unit_roundoff


def relation(pairs: PairedStep, target: int, reference: int) -> str | None:
    """Return in words the change that makes the target's tensor the reference's; None where there is none."""
    if not (pairs.target.kept(target) and pairs.reference.kept(reference)):
        return None
    if pairs.target.tensors[target].shape != pairs.reference.tensors[reference].shape:
        return None
    roundoff = unit_roundoff(pairs.target.data(target).dtype)
    if relative_error(pairs.target.data(target), pairs.reference.data(reference)) <= roundoff:
        return None
    ours = Subgraph(pairs.target, (), (target,), target)
    theirs = Subgraph(pairs.reference, (), (reference,), reference)
    found = fitting(Case(ours, theirs, {}, {}, roundoff, roundoff))
    return str(found) if found else None
