"""Explains a difference in a call that can't be replayed: random, a collective, or the user's own code."""

from __future__ import annotations

from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.explain.relation import relation
from numscope.diagnose.hypotheses.arguments import argument_words
from numscope.diagnose.recorded.invocation import invocation_of, is_random
from numscope.diagnose.recorded.paired_step import PairedStep
from numscope.diagnose.recorded.step_graph import RecordedCall
from numscope.diagnose.recorded.subgraph import Subgraph
from numscope.diagnose.replay.measures import relative_error, unit_roundoff


def explain(pairs: PairedStep, target: Subgraph, reference: Subgraph) -> Explanation | None:
    """Explain a difference in a call that can't be replayed; None where another call may be at fault."""
    ours, theirs = _call_not_replayed(target), _call_not_replayed(reference)
    if theirs is not None and theirs.kind == "collective" and (ours is None or ours.kind != "collective"):
        return Explanation("semantic", f"equal to the reference with the {theirs.op} that is missing, {theirs.name}")
    if ours is not None and ours.kind == "collective" and (theirs is None or theirs.kind != "collective"):
        return Explanation("semantic", f"equal to the reference without the {ours.op} {ours.name}")
    if ours is None or target.calls:
        return None
    if is_random(ours):
        return _random(pairs, ours, theirs)
    if theirs is None or reference.calls or not _same_inputs(pairs, ours, theirs):
        return None
    if pairs.target.kept(target.output) and pairs.reference.kept(reference.output):
        a, b = pairs.target.data(target.output), pairs.reference.data(reference.output)
        if relative_error(a, b) > 100 * unit_roundoff(a.dtype, b.dtype):
            note = "the same inputs, another output, and code that is not torch's: it computes something else"
            repair = relation(pairs, target.output, reference.output)
            return Explanation("semantic", repair, details={"note": note})
    return None


def _call_not_replayed(subgraph: Subgraph) -> RecordedCall | None:
    """Return the first call that can't be replayed and therefore ends a subgraph."""
    for number in subgraph.not_replayable:
        maker = subgraph.graph.producer.get(number)
        if maker is not None:
            return subgraph.graph.calls[maker]
    return None


def _same_inputs(pairs: PairedStep, ours: RecordedCall, theirs: RecordedCall) -> bool:
    here, there = pairs.target.inputs(ours.order), pairs.reference.inputs(theirs.order)
    return len(here) == len(there) and all(pairs.same(a, b) for a, b in zip(here, there))


def _random(pairs: PairedStep, ours: RecordedCall, theirs: RecordedCall | None) -> Explanation:
    """Explain a call that draws random numbers: its arguments differ, or only the numbers do."""
    pair = pairs.call(ours.name)
    if pair is not None and pair.reference_order is not None:
        theirs = pairs.reference.calls.get(pair.reference_order)
    if theirs is not None and theirs.op == ours.op:
        mine = invocation_of(pairs.target, ours, allow_random=True)
        other = invocation_of(pairs.reference, theirs, allow_random=True)
        if changes := argument_words(mine, other):
            return Explanation("semantic", f"equal to the reference with {', '.join(changes)}")
    return Explanation("input", details={"note": "the two runs draw other random numbers: seed both with ns.seed_all"})
