"""Explains a difference that lies in a call which can't be replayed: random, collective, or the user's own code."""

from __future__ import annotations

from numscope.diagnose.explain.explanation import Explanation, relation
from numscope.diagnose.hypotheses.arguments import argument_words
from numscope.diagnose.recorded.group import Group
from numscope.diagnose.recorded.invocation import decode, is_random
from numscope.diagnose.recorded.pairing import Pairing
from numscope.diagnose.recorded.step_graph import Call
from numscope.diagnose.replay.measures import relative, unit_roundoff


def opaque(pairs: Pairing, target: Group, reference: Group) -> Explanation | None:
    """Explain a difference that lies in a call which can't be replayed; None where it may lie elsewhere."""
    ours, theirs = _opaque_maker(target), _opaque_maker(reference)
    if theirs is not None and theirs.kind == "collective" and (ours is None or ours.kind != "collective"):
        return Explanation("semantic", f"equal to the reference with the {theirs.op} that is missing, {theirs.name}")
    if ours is not None and ours.kind == "collective" and (theirs is None or theirs.kind != "collective"):
        return Explanation("semantic", f"equal to the reference without the {ours.op} {ours.name}")
    if ours is None or target.calls:
        return None
    if is_random(ours):
        return _random(pairs, ours, theirs)
    if theirs is None or reference.calls or not _same_given(pairs, ours, theirs):
        return None
    a, b = pairs.target, pairs.reference
    if a.kept(target.output) and b.kept(reference.output):
        far = relative(a.data(target.output), b.data(reference.output))
        if far > 100 * unit_roundoff(a.data(target.output).dtype, b.data(reference.output).dtype):
            note = "the same inputs, another output, and code that is not torch's: it computes something else"
            repair = relation(a, target.output, b, reference.output)
            return Explanation("semantic", repair, details={"note": note})
    return None


def _opaque_maker(group: Group) -> Call | None:
    for number in group.opaque:
        maker = group.record.producer.get(number)
        if maker is not None:
            return group.record.calls[maker]
    return None


def _same_given(pairs: Pairing, ours: Call, theirs: Call) -> bool:
    given, there = pairs.target.inputs(ours.order), pairs.reference.inputs(theirs.order)
    return len(given) == len(there) and all(pairs.same(a, b) for a, b in zip(given, there))


def _random(pairs: Pairing, ours: Call, theirs: Call | None) -> Explanation:
    """Explain a call that draws random numbers: other arguments, or only other numbers."""
    row = pairs.row(ours.name)
    partner = (
        pairs.reference.calls.get(row["reference_order"]) if row and row["reference_order"] is not None else theirs
    )
    if partner is not None and partner.op == ours.op:
        mine, other = decode(pairs.target, ours, random=True), decode(pairs.reference, partner, random=True)
        if changes := argument_words(mine, other):
            return Explanation("semantic", f"equal to the reference with {', '.join(changes)}")
    return Explanation("input", details={"note": "the two runs draw other random numbers: seed both with ns.seed_all"})
