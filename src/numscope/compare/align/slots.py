"""Pairs the tensors of two paired calls by slot, and tensors that were passed in another way by content.

`f(x, mask)` and `f(x, mask=mask)` are the same call: slots that only one side has are paired by their bits, then in order
with those of the same shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.pairing import VALUE
from numscope.compare.align.tensor_lists import keys
from numscope.compare.load.side import Flags, Ints, Side, distinct
from numscope.core.operators import Trait, names_with

INPUT, STATE, OUTPUT = 0, 1, 2  # roles of a slot; the state of a call is its parameters and buffers
_ROLES = {"input": INPUT, "kwargs": INPUT, "parameters": STATE, "buffers": STATE, "state": STATE, "output": OUTPUT}


@dataclass(frozen=True)
class SlotPairs:
    """Rows of paired slots; `pair` is the row in the alignment, `a` and `b` rows of the two sides' tensors."""

    pair: Ints
    slot: Ints
    role: Ints
    a: Ints
    b: Ints
    alone_a: Ints  # rows of the target's slots, of paired calls, that have no counterpart
    alone_b: Ints


def slot_roles(side: Side, optimizer: Flags) -> Ints:
    """Return the role of each slot of a side; a gradient is an output of a backward call and an input of an optimizer."""
    present, inverse = distinct(side.slots.slot)
    heads = [side.book.words[code].partition(".")[0] for code in present.tolist()]
    role = np.array([_ROLES.get(head, OUTPUT) for head in heads], dtype=np.int64)[inverse]
    is_gradient = np.array([head == "parameters_grad" for head in heads], dtype=np.bool_)[inverse]
    return np.where(is_gradient & optimizer[side.slots.call], INPUT, role)


def pair_slots(a: Side, b: Side, alignment: Alignment, max_loop: int = 20_000) -> SlotPairs:
    """Return the paired slots of all paired calls."""
    pair_a, slot_a = slots_a = _expand(a, alignment.target)
    pair_b, slot_b = slots_b = _expand(b, alignment.reference)
    key_a, key_b = keys(a, b, alignment, pair_a, slot_a, pair_b, slot_b)
    if np.array_equal(key_a, key_b):
        place_a = place_b = np.arange(len(key_a))
    else:
        _, place_a, place_b = np.intersect1d(key_a, key_b, return_indices=True)
    rows_a, rows_b, pair = slot_a[place_a], slot_b[place_b], pair_a[place_a]
    more = _pair_left(a, b, slots_a.without(place_a), slots_b.without(place_b), max_loop)
    rows_a, rows_b = np.concatenate([rows_a, more.a]), np.concatenate([rows_b, more.b])
    pair = np.concatenate([pair, more.pair])
    _uncross(a, b, alignment, pair, rows_a, rows_b)
    paired_a, paired_b = rows_a, rows_b
    keep = _believable(a, b, alignment, pair, rows_a, rows_b)
    rows_a, rows_b, pair = rows_a[keep], rows_b[keep], pair[keep]
    if len(more.pair) or len(place_a) < len(key_a):
        sort = np.lexsort((rows_a, pair))
        rows_a, rows_b, pair = rows_a[sort], rows_b[sort], pair[sort]
    optimizer = a.calls.kind == a.book.code("optimizer")
    by_value = alignment.why == VALUE
    return SlotPairs(
        pair=pair,
        slot=a.slots.slot[rows_a],
        role=slot_roles(a, optimizer)[rows_a],
        a=a.slots.tensor[rows_a],
        b=b.slots.tensor[rows_b],
        alone_a=_others(slot_a[~by_value[pair_a]], paired_a, len(a.slots.slot)),
        alone_b=_others(slot_b[~by_value[pair_b]], paired_b, len(b.slots.slot)),
    )


class _SlotsOfPairs(NamedTuple):
    """The slots of a side's paired calls: for each, the row of its pair in the alignment and its own row."""

    pair: Ints
    row: Ints

    def without(self, used: Ints) -> _SlotsOfPairs:
        """Return the slots whose indices are not among `used`."""
        free = np.ones(len(self.row), np.bool_)
        free[used] = False
        return _SlotsOfPairs(self.pair[free], self.row[free])


class _PairedSlots(NamedTuple):
    """Slots that belong together: the row of the pair of calls, and the slot's row on each side."""

    pair: Ints
    a: Ints
    b: Ints


def _expand(side: Side, rows: Ints) -> _SlotsOfPairs:
    """Return every slot of the calls in `rows`."""
    begin, end = side.slots.start[rows], side.slots.start[rows + 1]
    count = end - begin
    pair = np.repeat(np.arange(len(rows)), count)
    offset = np.arange(len(pair)) - np.repeat(np.cumsum(count) - count, count)
    return _SlotsOfPairs(pair, np.repeat(begin, count) + offset)


def _others(rows: Ints, used: Ints, length: int) -> Ints:
    """Return the rows that are not used, in order."""
    chosen = np.zeros(length, np.bool_)
    chosen[rows] = True
    chosen[used] = False
    return np.flatnonzero(chosen)


def _pair_left(a: Side, b: Side, left_a: _SlotsOfPairs, left_b: _SlotsOfPairs, max_loop: int) -> _PairedSlots:
    """Pair slots of the same call that the two sides name differently."""
    by_pair: dict[int, list[int]] = {}
    for pair, row in zip(left_b.pair.tolist()[:max_loop], left_b.row.tolist()):
        by_pair.setdefault(pair, []).append(row)
    paired: list[tuple[int, int, int]] = []
    for pair, row in zip(left_a.pair.tolist()[:max_loop], left_a.row.tolist()):
        rivals = by_pair.get(pair)
        if rivals:
            best = _best_rival(a, b, row, rivals)
            if best is not None:
                rivals.remove(best)
                paired.append((pair, row, best))
    return _PairedSlots(*np.array(paired, dtype=np.int64).reshape(-1, 3).T)


def _best_rival(a: Side, b: Side, row: int, rivals: list[int]) -> int | None:
    t = int(a.slots.tensor[row])
    head = a.book.words[a.slots.slot[row]].partition(".")[0]
    is_input = head in ("input", "kwargs")
    for exact in (True, False):
        for rival in rivals:
            r = int(b.slots.tensor[rival])
            other = b.book.words[b.slots.slot[rival]].partition(".")[0]
            if (other in ("input", "kwargs")) != is_input or (not is_input and other != head) or t < 0 or r < 0:
                continue
            if exact and a.tensors.hash[t] == b.tensors.hash[r] and a.tensors.measured[t]:
                return rival
            if not exact and is_input and a.tensors.shape[t] == b.tensors.shape[r]:
                return rival
    return None


def _uncross(a: Side, b: Side, alignment: Alignment, pair: Ints, rows_a: Ints, rows_b: Ints) -> None:
    """Swap the partners of the two operands, in place, where `x + y` of one side is `y + x` of the other."""
    words, book, commutative = a.book.words, a.book, names_with(Trait.COMMUTATIVE)
    swaps = np.array([word in commutative for word in words], dtype=np.bool_)
    forward = a.calls.phase[alignment.target] == book.code("forward")
    calls = swaps[a.calls.op[alignment.target]] & forward & (alignment.why != VALUE)
    chosen = calls[pair]
    first = np.flatnonzero(chosen & (a.slots.slot[rows_a] == book.code("input.0")))
    second = np.flatnonzero(chosen & (a.slots.slot[rows_a] == book.code("input.1")))
    _, x, y = np.intersect1d(pair[first], pair[second], return_indices=True)
    crossed: set[int] = set()
    for i, j in zip(first[x].tolist(), second[y].tolist()):
        t, u = a.slots.tensor[rows_a[i]], a.slots.tensor[rows_a[j]]
        r, s = b.slots.tensor[rows_b[i]], b.slots.tensor[rows_b[j]]
        if min(t, u, r, s) < 0 or a.tensors.hash[t] == b.tensors.hash[r]:
            continue
        if _apart(a, t, b, s) + _apart(a, u, b, r) < 0.5 * (_apart(a, t, b, r) + _apart(a, u, b, s)):
            rows_b[i], rows_b[j] = rows_b[j], rows_b[i]
            crossed.add(int(alignment.target[pair[i]]))
    if crossed:
        _uncross_gradients(a, alignment, pair, rows_a, rows_b, crossed)


def _uncross_gradients(
    a: Side, alignment: Alignment, pair: Ints, rows_a: Ints, rows_b: Ints, crossed: set[int]
) -> None:
    """Swap the partners of the gradients of swapped operands, in place."""
    back = np.isin(a.calls.forward[alignment.target], list(crossed)) & ~a.calls.recompute[alignment.target]
    chosen = back[pair]
    first = np.flatnonzero(chosen & (a.slots.slot[rows_a] == a.book.code("output.0")))
    second = np.flatnonzero(chosen & (a.slots.slot[rows_a] == a.book.code("output.1")))
    _, x, y = np.intersect1d(pair[first], pair[second], return_indices=True)
    for i, j in zip(first[x].tolist(), second[y].tolist()):
        rows_b[i], rows_b[j] = rows_b[j], rows_b[i]


def _apart(a: Side, t: int, b: Side, r: int) -> float:
    """Return the distance of two tensors relative to their size; 2 where they cannot be compared."""
    if a.tensors.hash[t] == b.tensors.hash[r]:
        return 0.0
    if a.tensors.elements[t] != b.tensors.elements[r] or not (a.tensors.sketched[t] and b.tensors.sketched[r]):
        return 2.0
    size = a.tensors.l2[t] + b.tensors.l2[r]
    return float(2 * np.linalg.norm(a.tensors.sketch[t] - b.tensors.sketch[r]) / size) if size > 0 else 0.0


def _believable(a: Side, b: Side, alignment: Alignment, pair: Ints, rows_a: Ints, rows_b: Ints) -> Flags:
    """Return which pairs to keep: measured tensors, and of calls paired by value only those of like values."""
    t, r = a.slots.tensor[rows_a], b.slots.tensor[rows_b]
    keep = (t >= 0) & (r >= 0) & ~_overwritten(a, alignment.target[pair], rows_a)
    doubtful = np.flatnonzero(keep & (alignment.why[pair] == VALUE))
    same_op = a.calls.op[alignment.target[pair[doubtful]]] == b.calls.op[alignment.reference[pair[doubtful]]]
    for index, same in zip(doubtful.tolist(), same_op.tolist()):
        x, y = t[index], r[index]
        if same:
            continue
        alike = a.tensors.elements[x] == b.tensors.elements[y]
        if alike and a.tensors.hash[x] != b.tensors.hash[y]:
            scale = max(float(b.tensors.l2[y]), 1e-300)
            # A fused call takes other inputs than the call at its end does, and these may be near to each other.
            alike = float(np.linalg.norm(a.tensors.sketch[x] - b.tensors.sketch[y])) < 0.01 * scale
        keep[index] = alike
    return keep


def _overwritten(side: Side, calls: Ints, rows: Ints) -> Flags:
    """Return which slots are overwritten by their call before it reads them."""
    words, book, overwriting = side.book.words, side.book, names_with(Trait.OVERWRITES)
    fills = np.array([word in overwriting for word in words], dtype=np.bool_)
    first = [book.code("input.0"), book.code("kwargs.tensor"), book.code("kwargs.input")]
    forward = side.calls.phase[calls] != book.code("backward")
    return np.asarray(fills[side.calls.op[calls]] & np.isin(side.slots.slot[rows], first) & forward)
