"""Which target call belongs to which reference call.

The call trees are walked together from their roots. The children of two paired calls are paired in order
(sequence.py); a call that stays alone but has inner calls is opened, and its inner calls take its place, so that a
wrapper, a fused operator or a module that only one side has hides nothing. What is still alone is paired by value.
Backward calls are paired through their forward calls, a checkpoint's second execution through its first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from numscope.compare.sequence import pair_sequences
from numscope.compare.side import Flags, Ints, Side
from numscope.compare.tokens import Tokens, tokens
from numscope.compare.wrappers import WRAPPER_CLASSES

PATH, SEQUENCE, VALUE, MAP, FORWARD, RECOMPUTE = range(6)
REASONS = ("path", "sequence", "value", "map", "forward", "recompute")
_GAP = 48  # a gap with more calls than this on a side is not searched by value: it would cost more than it tells
_NEAR = 0.02
_ALIKE = 1e-5  # of two calls in the same place: what one of them computes, the other does too


@dataclass(frozen=True)
class Alignment:
    """Paired rows of both sides, in the target's order, and why each was paired."""

    target: Ints
    reference: Ints
    why: Ints
    alone_target: Ints
    alone_reference: Ints
    repeats_target: Ints  # a checkpoint's second executions that have no counterpart: not counted as unmatched
    repeats_reference: Ints


@dataclass
class _Work:
    """The state of one alignment."""

    a: Side
    b: Side
    tokens_a: Tokens
    tokens_b: Tokens
    partner_a: Ints
    partner_b: Ints
    why: Ints
    gaps: list[tuple[Ints, Ints]]
    children_a: _Children
    children_b: _Children

    def near(self, t: Ints, r: Ints) -> Flags:
        """Return which pairs of tensors have nearly the same values, by their sketches."""
        a, b = self.a.tensors, self.b.tensors
        there = (t >= 0) & (r >= 0)
        alike = np.zeros(len(t), np.bool_)
        rows = np.flatnonzero(there)
        rows = rows[(a.elements[t[rows]] == b.elements[r[rows]]) & a.sketched[t[rows]] & b.sketched[r[rows]]]
        if len(rows):
            gap = np.linalg.norm(a.sketch[t[rows]] - b.sketch[r[rows]], axis=1)
            alike[rows] = gap <= _NEAR * b.l2[r[rows]]
        return alike

    def pair(self, rows_a: Ints, rows_b: Ints, why: int) -> None:
        self.partner_a[rows_a] = rows_b
        self.partner_b[rows_b] = rows_a
        self.why[rows_a] = why


class _Children:
    """Rows below each row, wrappers that are looked through left out."""

    def __init__(self, parent: Ints, included: np.ndarray, dissolved: np.ndarray) -> None:
        parent = parent.copy()
        for row in np.flatnonzero(dissolved):
            parent[parent == row] = parent[row]
        rows = np.flatnonzero(included & ~dissolved)
        sort = np.argsort(parent[rows], kind="stable")
        self._rows = rows[sort]
        self._start = np.searchsorted(parent[rows][sort], np.arange(-1, len(parent) + 1))

    def of(self, row: int) -> Ints:
        """Return the children of a row, or the roots for -1."""
        return self._rows[self._start[row + 1] : self._start[row + 2]]

    def expand(self, rows: Ints) -> Ints:
        """Return rows with each that has children replaced by them."""
        return np.concatenate([self.of(int(row)) if self.has(int(row)) else np.array([row]) for row in rows])

    def has(self, row: int) -> bool:
        return bool(self._start[row + 1] < self._start[row + 2])

    def any(self, rows: Ints) -> bool:
        return bool((self._start[rows + 1] < self._start[rows + 2]).any())


def align(a: Side, b: Side, forced: Iterable[tuple[int, int]] = ()) -> Alignment:
    """Return the alignment of target `a` with reference `b`; `forced` are pairs of rows that a map file names."""
    primary_a, primary_b = _primary(a), _primary(b)
    linked_a, linked_b = _linked(a), _linked(b)
    tree_a, tree_b = ~a.calls.recompute & ~linked_a, ~b.calls.recompute & ~linked_b
    away_a, away_b = _lone_wrappers(a, b), _lone_wrappers(b, a)
    work = _Work(
        a,
        b,
        tokens(a),
        tokens(b),
        np.full(len(a.calls), -1),
        np.full(len(b.calls), -1),
        np.full(len(a.calls), -1),
        [],
        _Children(a.calls.parent, tree_a, away_a),
        _Children(b.calls.parent, tree_b, away_b),
    )
    named = [(x, y) for x, y in forced]
    if not named and _same_tree(work, tree_a, tree_b):
        rows_a, rows_b = np.flatnonzero(tree_a), np.flatnonzero(tree_b)
        work.pair(rows_a, rows_b, SEQUENCE)
        work.why[rows_a[a.calls.kind[rows_a] == a.book.code("module")]] = PATH
    else:
        _pair_optimizers(work)
        _walk(work)
        for x, y in named:
            _unpair(work, x, y)
            work.pair(np.array([x]), np.array([y]), MAP)
            if work.children_a.has(x) and work.children_b.has(y):
                _walk(work, (work.children_a.of(x), work.children_b.of(y)))
        _pair_reordered(work)
        _pair_by_value(work)
    _pair_backward(work, primary_a, primary_b)
    pairs_a, pairs_b, why, idle_a, idle_b = _pair_repeats(work, primary_a, primary_b)
    alone_a = np.flatnonzero((work.partner_a < 0) & ~a.calls.recompute)
    alone_b = np.flatnonzero((work.partner_b < 0) & ~b.calls.recompute)
    sort = np.argsort(pairs_a, kind="stable")
    return Alignment(pairs_a[sort], pairs_b[sort], why[sort], alone_a, alone_b, idle_a, idle_b)


def _linked(side: Side) -> Flags:
    """Return which calls are paired through their forward calls: backward calls, not second executions."""
    return (side.calls.forward >= 0) & ~side.calls.recompute


def _same_tree(work: _Work, tree_a: np.ndarray, tree_b: np.ndarray) -> bool:
    rows_a, rows_b = np.flatnonzero(tree_a), np.flatnonzero(tree_b)
    if len(rows_a) != len(rows_b) or not np.array_equal(work.tokens_a.exact[rows_a], work.tokens_b.exact[rows_b]):
        return False
    place_a, place_b = np.cumsum(tree_a), np.cumsum(tree_b)
    parent_a, parent_b = work.a.calls.parent[rows_a], work.b.calls.parent[rows_b]
    return np.array_equal(np.where(parent_a < 0, -1, place_a[parent_a]), np.where(parent_b < 0, -1, place_b[parent_b]))


def _lone_wrappers(side: Side, other: Side) -> Flags:
    """Return which calls are of wrapper modules that the other side does not have."""
    classes = [code for word, code in side.book.numbers.items() if word in WRAPPER_CLASSES]
    module = side.book.code("module")
    mine = np.isin(side.calls.module_class, classes) & (side.calls.kind == module)
    theirs = other.calls.module_class[other.calls.kind == module]
    return np.asarray(mine & ~np.isin(side.calls.module_class, theirs))


def _walk(work: _Work, start: tuple[Ints, Ints] | None = None) -> None:
    stack = [start or (work.children_a.of(-1), work.children_b.of(-1))]
    module = work.a.book.code("module")
    while stack:
        rows_a, rows_b = stack.pop()
        rows_a, rows_b = rows_a[work.partner_a[rows_a] < 0], rows_b[work.partner_b[rows_b] < 0]
        if not len(rows_a) or not len(rows_b):
            continue
        got_a, got_b = pair_sequences(work.tokens_a, work.tokens_b, rows_a, rows_b, work.near)
        is_module = work.a.calls.kind[got_a] == module
        work.pair(got_a[is_module], got_b[is_module], PATH)
        work.pair(got_a[~is_module], got_b[~is_module], SEQUENCE)
        deep = (work.a.calls.children[got_a] > 0) & (work.b.calls.children[got_b] > 0)
        for x, y in zip(got_a[deep].tolist(), got_b[deep].tolist()):
            stack.append((work.children_a.of(x), work.children_b.of(y)))
        if len(got_a) == len(rows_a) or len(got_b) == len(rows_b):
            continue
        moved = _pair_moved(work, rows_a, rows_b)
        stack += [(work.children_a.of(x), work.children_b.of(y)) for x, y in moved]
        for gap_a, gap_b in _gaps(rows_a, rows_b, got_a, got_b):
            gap_a, gap_b = gap_a[work.partner_a[gap_a] < 0], gap_b[work.partner_b[gap_b] < 0]
            if not len(gap_a) or not len(gap_b):
                continue
            if work.children_a.any(gap_a) or work.children_b.any(gap_b):
                stack.append((work.children_a.expand(gap_a), work.children_b.expand(gap_b)))
            else:
                work.gaps.append((gap_a, gap_b))


def _pair_moved(work: _Work, rows_a: Ints, rows_b: Ints) -> list[tuple[int, int]]:
    """Pair modules of the same path that changed places, before anything is opened; return the pairs."""
    module = work.a.book.code("module")
    left_a = rows_a[(work.partner_a[rows_a] < 0) & (work.a.calls.kind[rows_a] == module)]
    left_b = rows_b[(work.partner_b[rows_b] < 0) & (work.b.calls.kind[rows_b] == module)]
    got_a, got_b = join(_occurrences(work.tokens_a.relaxed[left_a]), _occurrences(work.tokens_b.relaxed[left_b]))
    work.pair(left_a[got_a], left_b[got_b], PATH)
    return list(zip(left_a[got_a].tolist(), left_b[got_b].tolist()))


def _gaps(rows_a: Ints, rows_b: Ints, got_a: Ints, got_b: Ints) -> list[tuple[Ints, Ints]]:
    """Return the stretches between pairs in which both sides have calls that stayed alone."""
    place_a = np.searchsorted(rows_a, got_a)
    place_b = np.searchsorted(rows_b, got_b)
    edges_a = np.concatenate([[-1], place_a, [len(rows_a)]])
    edges_b = np.concatenate([[-1], place_b, [len(rows_b)]])
    open_gap = np.flatnonzero((np.diff(edges_a) > 1) & (np.diff(edges_b) > 1))
    return [(rows_a[edges_a[g] + 1 : edges_a[g + 1]], rows_b[edges_b[g] + 1 : edges_b[g + 1]]) for g in open_gap]


def _unpair(work: _Work, x: int, y: int) -> None:
    if work.partner_a[x] >= 0:
        work.partner_b[work.partner_a[x]] = -1
    if work.partner_b[y] >= 0:
        work.partner_a[work.partner_b[y]] = -1
    work.partner_a[x] = work.partner_b[y] = -1


def _pair_reordered(work: _Work) -> None:
    """Pair what is left by token, the k-th with the k-th: modules by path, operators where the module path is the same."""
    left_a, left_b = _left(work)
    if not len(left_a) or not len(left_b):
        return
    calls_a, calls_b = work.a.calls, work.b.calls
    keys_a = work.tokens_a.exact[left_a] ^ (calls_a.module[left_a].astype(np.uint64) << np.uint64(40))
    keys_b = work.tokens_b.exact[left_b] ^ (calls_b.module[left_b].astype(np.uint64) << np.uint64(40))
    got_a, got_b = join(_occurrences(keys_a), _occurrences(keys_b))
    rows_a, rows_b = left_a[got_a], left_b[got_b]
    is_module = calls_a.kind[rows_a] == work.a.book.code("module")
    # An operator that moved within its module is the same only if it still computes the same bits.
    same = is_module | (
        (work.tokens_a.strong[rows_a] == work.tokens_b.strong[rows_b]) & (work.tokens_a.bits[rows_a] > 0)
    )
    work.pair(rows_a[same], rows_b[same], SEQUENCE)
    work.why[rows_a[same & is_module]] = PATH
    for x, y in zip(rows_a[same & is_module].tolist(), rows_b[same & is_module].tolist()):
        _walk(work, (work.children_a.of(x), work.children_b.of(y)))


def _left(work: _Work) -> tuple[Ints, Ints]:
    a, b = work.a.calls, work.b.calls
    return (
        np.flatnonzero((work.partner_a < 0) & ~a.recompute & ~_linked(work.a)),
        np.flatnonzero((work.partner_b < 0) & ~b.recompute & ~_linked(work.b)),
    )


def _occurrences(keys: np.ndarray) -> np.ndarray:
    """Return keys made distinct: the k-th occurrence of a key gets k mixed in."""
    sort = np.argsort(keys, kind="stable")
    ordered = keys[sort]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(keys) else np.zeros(0, np.bool_)
    begin = np.maximum.accumulate(np.where(first, np.arange(len(keys)), 0))
    count = np.empty(len(keys), dtype=np.uint64)
    count[sort] = np.arange(len(keys)) - begin
    return keys.astype(np.uint64) + count * np.uint64(0x9E3779B97F4A7C15)


def join(a: np.ndarray, b: np.ndarray) -> tuple[Ints, Ints]:
    """Return the positions in a and in b of the keys they share; keys are distinct on each side."""
    _, place_a, place_b = np.intersect1d(a, b, assume_unique=False, return_indices=True)
    sort = np.argsort(place_a)
    return place_a[sort], place_b[sort]


def _pair_by_value(work: _Work) -> None:
    left_a, left_b = _left(work)
    bits_a, bits_b = work.tokens_a.bits[left_a], work.tokens_b.bits[left_b]
    told_a, told_b = left_a[bits_a > 0], left_b[bits_b > 0]
    phase_a = work.a.calls.phase[told_a].astype(np.uint64)
    phase_b = work.b.calls.phase[told_b].astype(np.uint64)
    got_a, got_b = join(
        _occurrences(work.tokens_a.bits[told_a] + phase_a), _occurrences(work.tokens_b.bits[told_b] + phase_b)
    )
    work.pair(told_a[got_a], told_b[got_b], VALUE)
    for gap_a, gap_b in work.gaps:
        gap_a, gap_b = gap_a[work.partner_a[gap_a] < 0], gap_b[work.partner_b[gap_b] < 0]
        if 0 < len(gap_a) <= _GAP and 0 < len(gap_b) <= _GAP:
            _pair_gap(work, gap_a, gap_b)


def _pair_optimizers(work: _Work) -> None:
    """Pair steps of optimizers that update the same parameters, whatever their class and their place in the step."""
    kind = work.a.book.code("optimizer")
    left_a, left_b = _left(work)
    left_b = left_b[work.b.calls.kind[left_b] == kind]
    for x in left_a[work.a.calls.kind[left_a] == kind].tolist():
        slots = _slots(work.a, x)
        shared = np.array([len(np.intersect1d(slots, _slots(work.b, y))) for y in left_b.tolist()])
        if shared.any():
            y = left_b[shared.argmax()]
            work.pair(np.array([x]), np.array([y]), SEQUENCE)
            left_b = left_b[left_b != y]


def _slots(side: Side, row: int) -> Ints:
    return side.slots.slot[side.slots.start[row] : side.slots.start[row + 1]]


def _pair_gap(work: _Work, gap_a: Ints, gap_b: Ints) -> None:
    out_a, out_b = _outputs(work.a, gap_a), _outputs(work.b, gap_b)
    near = []
    for x, t in zip(gap_a.tolist(), out_a):
        for y, r in zip(gap_b.tolist(), out_b):
            if t < 0 or r < 0 or work.a.calls.phase[x] != work.b.calls.phase[y]:
                continue
            distance = _distance(work.a, t, work.b, r)
            if distance < _NEAR:
                near.append((distance, x, y))
    for _, x, y in sorted(near):
        if work.partner_a[x] < 0 and work.partner_b[y] < 0:
            work.pair(np.array([x]), np.array([y]), VALUE)
    left_a, left_b = gap_a[work.partner_a[gap_a] < 0], gap_b[work.partner_b[gap_b] < 0]
    if len(left_a) == 1 and len(left_b) == 1 and _replaced(work, int(left_a[0]), int(left_b[0])):
        same = _outputs_alike(work, int(left_a[0]), int(left_b[0]))
        work.pair(left_a, left_b, VALUE if same else SEQUENCE)


def _outputs_alike(work: _Work, x: int, y: int) -> bool:
    """Return whether two calls that stand alone in the same place come to the same values, a single number included."""
    t, r = int(_outputs(work.a, np.array([x]))[0]), int(_outputs(work.b, np.array([y]))[0])
    a, b = work.a.tensors, work.b.tensors
    if not (a.sketched[t] and b.sketched[r]):
        return False
    return float(np.linalg.norm(a.sketch[t] - b.sketch[r])) <= _ALIKE * float(b.l2[r])


def _replaced(work: _Work, x: int, y: int) -> bool:
    """Return whether two calls that stand alone in the same place have outputs of the same shape: one replaces the other."""
    t, r = int(_outputs(work.a, np.array([x]))[0]), int(_outputs(work.b, np.array([y]))[0])
    same = t >= 0 and r >= 0 and work.a.tensors.shape[t] == work.b.tensors.shape[r]
    if same and _passes_on(work.a, x, t) != _passes_on(work.b, y, r):
        return False  # a cast or a copy that changes nothing does not stand for a call that computes
    return same and work.a.calls.phase[x] == work.b.calls.phase[y] and work.a.calls.kind[x] == work.b.calls.kind[y]


def _passes_on(side: Side, row: int, output: int) -> bool:
    """Return whether a call's output has the bits of one of its inputs."""
    tensors = side.slots.tensor[side.slots.start[row] : side.slots.start[row + 1]]
    others = tensors[(tensors >= 0) & (_slots(side, row) != side.book.code("output.0"))]
    return bool(np.any(side.tensors.hash[others] == side.tensors.hash[output]))


def _outputs(side: Side, rows: Ints) -> Ints:
    """Return the tensor in `output.0` (or `output`) of each row, -1 where there is none."""
    wanted = [side.book.code("output.0"), side.book.code("output")]
    found = np.full(len(rows), -1)
    for place, row in enumerate(rows.tolist()):
        here = slice(side.slots.start[row], side.slots.start[row + 1])
        hit = np.flatnonzero(np.isin(side.slots.slot[here], wanted))
        if len(hit):
            found[place] = side.slots.tensor[here][hit[0]]
    return found


def _distance(a: Side, t: int, b: Side, r: int) -> float:
    if a.tensors.elements[t] != b.tensors.elements[r] or a.tensors.elements[t] < 2:
        return np.inf
    if not (a.tensors.sketched[t] and b.tensors.sketched[r]) or not b.tensors.l2[r] > 0:
        return np.inf
    return float(np.linalg.norm(a.tensors.sketch[t] - b.tensors.sketch[r]) / b.tensors.l2[r])


def _primary(side: Side) -> Ints:
    """Return each row's first execution: for a checkpoint's second execution the row that it repeats, else itself."""
    rows = np.arange(len(side.calls))
    again = np.flatnonzero(side.calls.recompute)
    if not len(again):
        return rows
    first = np.flatnonzero(~side.calls.recompute & (side.calls.forward < 0))
    by_name = {side.calls.name(row): row for row in first.tolist()}
    primary = rows.copy()
    mixed = (side.calls.op * 1_000_003 + side.calls.module).astype(np.uint64)
    got_again, got_first = join(_occurrences(mixed[again]), _occurrences(mixed[first]))
    primary[again] = -1
    primary[again[got_again]] = first[got_first]
    for row in again.tolist():
        recorded = int(side.calls.forward[row])  # capture says which execution this one repeats
        primary[row] = recorded if recorded >= 0 else by_name.get(side.calls.name(row), primary[row])
    return primary


def _pair_backward(work: _Work, primary_a: Ints, primary_b: Ints) -> None:
    """Pair backward calls whose forward calls are paired, the k-th with the k-th."""
    a, b = work.a.calls, work.b.calls
    rows_a = np.flatnonzero(_linked(work.a) & (work.partner_a < 0))
    rows_b = np.flatnonzero(_linked(work.b) & (work.partner_b < 0))
    first_a, first_b = primary_a[a.forward[rows_a]], primary_b[b.forward[rows_b]]
    there = (first_a >= 0) & (work.partner_a[first_a] >= 0)
    rows_a, first_a = rows_a[there], first_a[there]
    rows_b, first_b = rows_b[first_b >= 0], first_b[first_b >= 0]
    got_a, got_b = join(
        _occurrences(work.partner_a[first_a].astype(np.uint64)), _occurrences(first_b.astype(np.uint64))
    )
    work.pair(rows_a[got_a], rows_b[got_b], FORWARD)
    inherited = work.why[first_a[got_a]] == VALUE
    work.why[rows_a[got_a][inherited]] = VALUE
    for x, y in zip(rows_a[got_a].tolist(), rows_b[got_b].tolist()):
        if work.children_a.has(x) and work.children_b.has(y):  # a hand-written backward has calls of its own
            _walk(work, (work.children_a.of(x), work.children_b.of(y)))


def _pair_repeats(work: _Work, primary_a: Ints, primary_b: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return all pairs, with a checkpoint's second executions paired to the other side's, or else to its first ones."""
    a, b = work.a.calls, work.b.calls
    again_a, again_b = np.flatnonzero(a.recompute), np.flatnonzero(b.recompute)
    pairs_a = np.flatnonzero(work.partner_a >= 0)
    pairs_b, why = work.partner_a[pairs_a], work.why[pairs_a]
    if not len(again_a):
        return pairs_a, pairs_b, why, again_a, again_b
    first_a = primary_a[again_a]
    partner = np.where(first_a >= 0, work.partner_a[first_a], -1)
    repeat_of = {int(primary_b[row]): int(row) for row in again_b.tolist() if primary_b[row] >= 0}
    other = np.array([repeat_of.get(int(row), int(row)) for row in partner.tolist()], dtype=np.int64)
    found = other >= 0
    idle_b = np.setdiff1d(again_b, other[found])
    return (
        np.concatenate([pairs_a, again_a[found]]),
        np.concatenate([pairs_b, other[found]]),
        np.concatenate([why, np.full(int(found.sum()), RECOMPUTE)]),
        again_a[~found],
        idle_b,
    )
