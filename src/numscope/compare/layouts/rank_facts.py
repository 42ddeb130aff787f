"""Facts that the ranks' own calls tell of a call of the whole job: whose arguments are others, which calls cut the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.slots import OUTPUT, SlotPairs
from numscope.compare.layouts.pieces import FITS, averaged, piece, summed
from numscope.compare.layouts.whole_step import WholeStep
from numscope.compare.load.side import Flags, Ints, Side
from numscope.compare.measure.measures import Measures
from numscope.core.operators import BETWEEN_RANKS, IDLE, operator


def without_layout(a: Side, alignment: Alignment) -> Alignment:
    """Return the alignment without the calls that bring about a layout: each has its own.

    These are collectives, the copies that a wrapper makes for them, and calls before the model that only choose and
    arrange elements: they give each rank its part of the data. What enters the model is compared when all is together.
    """
    calls, book = a.calls, a.book
    x = alignment.target
    outside = (calls.parent < 0) & (calls.phase == book.code("forward"))
    models = np.flatnonzero(outside & (calls.kind == book.code("module")))
    cuts = (outside & (calls.children == 0) & (calls.kind == book.code("api")))[x] & (x < models[:1].sum())
    for pair in np.flatnonzero(cuts).tolist():
        cuts[pair] = operator(book.words[calls.op[x[pair]]]).rounding in IDLE
    between_ranks = np.array([word in BETWEEN_RANKS for word in book.words] + [False])
    cuts |= (calls.kind[x] == book.code("collective")) | between_ranks[calls.op[x]]
    cuts |= _arranges(a, between_ranks[calls.op])[x]
    if not cuts.any():
        return alignment
    return replace(
        alignment,
        target=x[~cuts],
        reference=alignment.reference[~cuts],
        why=alignment.why[~cuts],
        alone_target=np.sort(np.concatenate([alignment.alone_target, x[cuts]])),
        alone_reference=np.sort(np.concatenate([alignment.alone_reference, alignment.reference[cuts]])),
    )


def _arranges(side: Side, wrappers: Flags) -> Flags:
    """Return which calls only arrange what a wrapper's copies hold: views of a buffer of many parameters."""
    calls, slots, book = side.calls, side.slots, side.book
    is_output = np.array([word.startswith("output") for word in book.words] + [False])[slots.slot]
    arranged, held = np.zeros(len(calls), np.bool_), set[int]()  # by their bits: a collective leaves no trace
    for row in range(len(calls)):
        here = slice(int(slots.start[row]), int(slots.start[row + 1]))
        tensors, made = slots.tensor[here], is_output[here]
        given = tensors[~made & (tensors >= 0)]
        if not wrappers[row] and len(given) and calls.children[row] == 0 and held.issuperset(_bits(side, given)):
            is_collective = calls.kind[row] == book.code("collective")
            arranged[row] = is_collective or operator(book.words[calls.op[row]]).rounding in IDLE
        if wrappers[row] or arranged[row]:
            held.update(_bits(side, tensors[made & (tensors >= 0)]))
    return arranged


def _bits(side: Side, tensors: Ints) -> list[int]:
    bits: list[int] = side.tensors.hash[tensors].tolist()
    return bits


def with_other_arguments(
    a: WholeStep, b: WholeStep, alignment: Alignment, slots: SlotPairs, measures: Measures
) -> tuple[WholeStep, WholeStep]:
    """Show of each call whose results differ the member that has other arguments than the other side's call."""
    off = np.zeros(len(alignment.target), np.bool_)
    wrong = (slots.role == OUTPUT) & ~measures.bitwise[measures.row_of]
    off[slots.pair[wrong]] = True
    pairs = np.flatnonzero(off)
    return (
        _shown(a, alignment.target[pairs], b.calls.arguments[alignment.reference[pairs]]),
        _shown(b, alignment.reference[pairs], a.calls.arguments[alignment.target[pairs]]),
    )


def parts_on_ranks(a: Side, t: int, b: Side, r: int) -> tuple[int, str]:
    """Return the rank whose tensor is not as the others', or -1, and what all ranks' make where that is the other side's."""
    if not (isinstance(a, WholeStep) and isinstance(b, WholeStep)) or a.pool is None or a.rank_of_tensor[t] < 0:
        return -1, ""
    parts = [piece(a.pool, row) for row in a.pieces[t]]
    other = piece(b.tensors, r)
    for word, whole in (("mean", averaged(parts)), ("sum", summed(parts))):
        if whole is not None and whole.elements == other.elements and whole.apart(other) < FITS:
            return int(a.rank_of_tensor[t]), word
    return int(a.rank_of_tensor[t]), ""


def _shown(side: WholeStep, calls: Ints, others: Ints) -> WholeStep:
    arguments, ranks = side.calls.arguments.copy(), side.rank_of_call.copy()
    of_rank = {one.rank: one for one in side.ranks}
    for call, other in zip(calls.tolist(), others.tolist()):
        found = [(one.rank, int(of_rank[one.rank].calls.arguments[one.row])) for one in side.members[call]]
        if len({own for _, own in found}) > 1:
            ranks[call], arguments[call] = next((rank, own) for rank, own in found if own != other)
    return replace(side, calls=replace(side.calls, arguments=arguments), rank_of_call=ranks)
