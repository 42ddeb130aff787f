"""Looks for a tensor in the other run, whichever call made it there.

A rewritten function takes the halves of a tensor in another order, and its calls, paired in order, then seem to choose
something else. Where each of the two results is somewhere in the other run as well, the calls only changed places.
"""

from __future__ import annotations

import numpy as np

from numscope.compare.align.slots import OUTPUT
from numscope.compare.judge.facts import Facts
from numscope.compare.judge.paths.dataflow import Flow
from numscope.compare.judge.state import State
from numscope.compare.load.side import Ints
from numscope.compare.measure.masked import filled

_MOST_TENSORS = 12  # that are followed on from one
_SAME_NUMBER = 1e-5  # relative: as far as float32 agrees


def same_values(facts: Facts, t: int, r: int) -> bool:
    """Return whether a tensor of the target and one of the reference have the same values, whatever their shapes."""
    a, b = facts.a.tensors, facts.b.tensors
    if a.elements[t] != b.elements[r] or not (a.sketched[t] and b.sketched[r]):
        return False
    if filled(facts.a, np.array([t])).any() or filled(facts.b, np.array([r])).any():
        return False  # a mask's value hides the rest
    return bool(np.linalg.norm(a.sketch[t] - b.sketch[r]) <= facts.same_result * b.l2[r])


def changed_places(facts: Facts, row: int) -> bool:
    """Return whether each of a slot's two tensors, which differ, is made by another call of the other run."""
    t, r = facts.tensors(row)
    if not facts.error_or_zero(row) > facts.same_result:
        return False
    return _is_made_by_another(facts, facts.flow_a, t, facts.flow_b, r) and _is_made_by_another(
        facts, facts.flow_b, r, facts.flow_a, t
    )


def lone_calls_make_up(state: State, row: int) -> bool:
    """Return whether calls that one side alone has make, of its tensor in a slot, the other side's tensor."""
    facts = state.facts
    t, r = facts.tensors(row)
    from_target = _made_of(facts.flow_a, t, state.target.partner)
    from_reference = _made_of(facts.flow_b, r, state.reference.partner)
    return any(_is_same(facts, x, r) for x in from_target) or any(_is_same(facts, t, y) for y in from_reference)


def _is_same(facts: Facts, t: int, r: int) -> bool:
    """Return whether two tensors have the same values; a single number must agree as float32 does."""
    a, b = facts.a.tensors, facts.b.tensors
    if a.elements[t] == b.elements[r] == 1:
        return bool(abs(a.mean[t] - b.mean[r]) <= _SAME_NUMBER * abs(b.mean[r]))
    return same_values(facts, t, r)


def _made_of(flow: Flow, tensor: int, partner: Ints) -> list[int]:
    """Return the results that calls without partner compute from a tensor, a few calls on."""
    slots, found = flow.side.slots, [tensor]
    for given in found:
        users = slots.call[(slots.tensor == given) & (flow.role != OUTPUT)] if len(found) < _MOST_TENSORS else ()
        for call in {int(user) for user in users if partner[user] < 0 and user > flow.producer[given]}:
            here = slice(slots.start[call], slots.start[call + 1])
            made = slots.tensor[here][flow.role[here] == OUTPUT]
            found += [int(x) for x in made if x >= 0 and int(x) not in found]
    return found[1:]


def _is_made_by_another(facts: Facts, own: Flow, tensor: int, other: Flow, but: int) -> bool:
    """Return whether calls of the other side made a tensor of the same shape and values, besides `but`."""
    mine, theirs = own.side.tensors, other.side.tensors
    if not (mine.sketched[tensor] and mine.min[tensor] < mine.max[tensor]):
        return False  # a constant says nothing about which call it came from
    rows = np.flatnonzero((theirs.shape == mine.shape[tensor]) & theirs.sketched & (other.producer >= 0))
    rows = rows[rows != but]
    distance = np.linalg.norm(theirs.sketch[rows] - mine.sketch[tensor], axis=1)
    return bool((distance <= facts.same_result * mine.l2[tensor]).any())
