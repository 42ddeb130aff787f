"""Whether the other run has a tensor too, whoever made it there.

A rewritten function takes the halves of a tensor in another order, and its calls, paired in order, then seem to choose
something else. Where each of the two results is somewhere in the other run as well, the calls only changed places.
"""

from __future__ import annotations

import numpy as np

from numscope.compare.align.slots import OUTPUT
from numscope.compare.judge.ledger import Ledger
from numscope.compare.judge.paths.dataflow import Flow
from numscope.compare.load.side import Ints, Side
from numscope.compare.measure.measures import filled

_FEW = 12  # tensors that are followed on from one


def alike(ledger: Ledger, t: int, r: int) -> bool:
    """Return whether a tensor of the target and one of the reference have the same values, whatever their shapes."""
    a, b = ledger.a.tensors, ledger.b.tensors
    if a.elements[t] != b.elements[r] or not (a.sketched[t] and b.sketched[r]):
        return False
    if filled(ledger.a, np.array([t])).any() or filled(ledger.b, np.array([r])).any():
        return False  # a mask's value hides the rest
    return bool(np.linalg.norm(a.sketch[t] - b.sketch[r]) <= ledger.alike * b.l2[r])


def crossed(ledger: Ledger, row: int) -> bool:
    """Return whether each of a slot's two tensors, which differ, is made by another call of the other run."""
    t, r = ledger.tensors(row)
    if not ledger.size(row) > ledger.alike:
        return False
    return _elsewhere(ledger, ledger.a, t, ledger.b, r) and _elsewhere(ledger, ledger.b, r, ledger.a, t)


def meets_again(ledger: Ledger, row: int) -> bool:
    """Return whether calls that one side alone has make, of what is in a slot, what the other side has there."""
    t, r = ledger.tensors(row)
    ahead = _made_of(ledger.flow_a, t, ledger.partner_a)
    behind = _made_of(ledger.flow_b, r, ledger.partner_b)
    return any(_is_same(ledger, x, r) for x in ahead) or any(_is_same(ledger, t, y) for y in behind)


def _is_same(ledger: Ledger, t: int, r: int) -> bool:
    """Return whether two tensors have the same values; a single number must agree as float32 does."""
    a, b = ledger.a.tensors, ledger.b.tensors
    if a.elements[t] == b.elements[r] == 1:
        return bool(abs(a.mean[t] - b.mean[r]) <= 1e-5 * abs(b.mean[r]))
    return alike(ledger, t, r)


def _made_of(flow: Flow, tensor: int, partner: Ints) -> list[int]:
    """Return what calls without counterpart make of a tensor, a few calls on."""
    slots, found = flow.side.slots, [tensor]
    for given in found:
        users = slots.call[(slots.tensor == given) & (flow.role != OUTPUT)] if len(found) < _FEW else ()
        for call in {int(user) for user in users if partner[user] < 0 and user > flow.producer[given]}:
            here = slice(slots.start[call], slots.start[call + 1])
            made = slots.tensor[here][flow.role[here] == OUTPUT]
            found += [int(x) for x in made if x >= 0 and int(x) not in found]
    return found[1:]


def _elsewhere(ledger: Ledger, side: Side, tensor: int, other: Side, but: int) -> bool:
    """Return whether calls of the other side made a tensor of the same shape and values, besides `but`."""
    mine, theirs = side.tensors, other.tensors
    if not (mine.sketched[tensor] and mine.min[tensor] < mine.max[tensor]):
        return False  # a constant says nothing about which call it came from
    made = (ledger.flow_b if other is ledger.b else ledger.flow_a).producer >= 0
    rows = np.flatnonzero((theirs.shape == mine.shape[tensor]) & theirs.sketched & made)
    rows = rows[rows != but]
    distance = np.linalg.norm(theirs.sketch[rows] - mine.sketch[tensor], axis=1)
    return bool((distance <= ledger.alike * mine.l2[tensor]).any())
