"""Finds the pairs of calls that may not belong together: paired in order where one side has more of them, by nothing else.

`0 + 24` and `-8 + 1` are both an addition of two single numbers; of three additions here and two there, which is which?
What they are given may tell: the same tensor, one nearly the same, or one that paired calls made. Where nothing tells, no
verdict rests on the pair: its two calls are judged by where their results lead, as calls of one side alone are.
"""

from __future__ import annotations

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.pairing import NEAR, SEQUENCE
from numscope.compare.align.slots import OUTPUT, SlotPairs
from numscope.compare.judge.paths.dataflow import Flow
from numscope.compare.load.side import Flags, Ints


def doubtful_pairs(flow_a: Flow, flow_b: Flow, alignment: Alignment, slots: SlotPairs) -> Flags:
    """Return which pairs rest on the order of calls alone, though calls of their operator are left over beside them."""
    a, b = flow_a.side, flow_b.side
    doubtful = np.zeros(len(alignment.target), np.bool_)
    lone_ops = np.unique(np.concatenate([a.calls.op[alignment.alone_target], b.calls.op[alignment.alone_reference]]))
    leaf = (a.calls.children[alignment.target] == 0) & (b.calls.children[alignment.reference] == 0)
    chosen = np.isin(a.calls.op[alignment.target], lone_ops) & (alignment.why == SEQUENCE) & leaf
    chosen &= a.calls.kind[alignment.target] != a.book.code("optimizer")
    pairs = np.flatnonzero(chosen)
    if not len(pairs):
        return doubtful
    around_target, around_reference = _pairs_around(a.calls.parent, b.calls.parent, alignment)
    beside = {
        (int(side.calls.op[row]), int(around[row]))
        for side, lone, around in (
            (a, alignment.alone_target, around_target),
            (b, alignment.alone_reference, around_reference),
        )
        for row in lone.tolist()
    }
    rows = alignment.target[pairs]
    rivals = [
        (int(op), int(around)) in beside for op, around in zip(a.calls.op[rows].tolist(), around_target[rows].tolist())
    ]
    doubtful[pairs[np.array(rivals, dtype=np.bool_)]] = True
    doubtful[slots.pair[_telling(flow_a, flow_b, alignment, slots)]] = False
    return doubtful


def _pairs_around(parent_a: Ints, parent_b: Ints, alignment: Alignment) -> tuple[Ints, Ints]:
    """Return for each call of both sides the pair of the nearest call around it that is paired, -1 for none."""
    found = []
    for parent, rows in ((parent_a, alignment.target), (parent_b, alignment.reference)):
        own = np.full(len(parent), -1)
        own[rows] = np.arange(len(rows))
        around = np.full(len(parent), -1)
        for row, outer in enumerate(parent.tolist()):  # a call stands after those around it
            if outer >= 0:
                around[row] = own[outer] if own[outer] >= 0 else around[outer]
        found.append(around)
    target, reference = found
    return target, reference


def _telling(flow_a: Flow, flow_b: Flow, alignment: Alignment, slots: SlotPairs) -> Flags:
    """Return which slots tell that their two calls belong together.

    They hold the same tensor or one nearly the same, unless it is a constant or a single number, or paired calls made
    what is in them.
    """
    a, b = flow_a.side.tensors, flow_b.side.tensors
    t, r = slots.a, slots.b
    pair_of = np.full(len(flow_a.side.calls) + 1, -1)
    pair_of[alignment.target] = np.arange(len(alignment.target))
    pair_of_reference = np.full(len(flow_b.side.calls) + 1, -1)
    pair_of_reference[alignment.reference] = np.arange(len(alignment.reference))
    made = pair_of[flow_a.producer[flow_a.same[t]]]
    by_pair = (made >= 0) & (made == pair_of_reference[flow_b.producer[flow_b.same[r]]]) & (slots.role != OUTPUT)
    holds = (a.elements[t] > 1) & (a.min[t] < a.max[t]) & (a.elements[t] == b.elements[r])
    same = holds & (a.hash[t] == b.hash[r])
    near = np.flatnonzero(holds & ~same & a.sketched[t] & b.sketched[r])
    if len(near):
        gap = np.linalg.norm(a.sketch[t[near]] - b.sketch[r[near]], axis=1)
        same[near] = gap <= NEAR * b.l2[r[near]]
    return np.asarray(by_pair | same)
