"""Walks two call trees together from their roots, and pairs the children of paired calls in order.

An unpaired call with inner calls is replaced by them, so that the calls inside a wrapper, a fused operator or a module
that only one side has can still be paired.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from numscope.compare.align.pairing import PATH, SEQUENCE, VALUE, Pairing
from numscope.compare.align.sequence import best_path, pair_sequences
from numscope.compare.align.tokens import Tokens, join, occurrences
from numscope.compare.load.side import Flags, Ints, Side, Words
from numscope.compare.load.wrappers import WRAPPER_CLASSES

_MOST_ALIKE = 4096  # pairs of modules whose outputs are compared


def same_tree(work: Pairing, tree_a: Flags, tree_b: Flags) -> bool:
    """Tell whether the two trees have the same calls in the same order and nesting."""
    rows_a, rows_b = np.flatnonzero(tree_a), np.flatnonzero(tree_b)
    if len(rows_a) != len(rows_b) or not np.array_equal(work.tokens_a.exact[rows_a], work.tokens_b.exact[rows_b]):
        return False
    place_a, place_b = np.cumsum(tree_a), np.cumsum(tree_b)
    parent_a, parent_b = work.a.calls.parent[rows_a], work.b.calls.parent[rows_b]
    return np.array_equal(np.where(parent_a < 0, -1, place_a[parent_a]), np.where(parent_b < 0, -1, place_b[parent_b]))


def lone_wrappers(side: Side, other: Side) -> Flags:
    """Return which calls are of wrapper modules that the other side does not have.

    One in which no call was seen, a compiled region, stands for the module that it wraps.
    """
    classes = [code for word, code in side.book.numbers.items() if word in WRAPPER_CLASSES]
    module = side.book.code("module")
    mine = np.isin(side.calls.module_class, classes) & (side.calls.kind == module) & (side.calls.children > 0)
    theirs = other.calls.module_class[other.calls.kind == module]
    return np.asarray(mine & ~np.isin(side.calls.module_class, theirs))


def walk(work: Pairing, start: tuple[Ints, Ints] | None = None) -> None:
    """Pair the calls below the roots, or below `start`, and the children of each pair in turn."""
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
                stack += _between_alike(work, gap_a, gap_b)
            else:
                work.gaps.append((gap_a, gap_b))


def _between_alike(work: Pairing, gap_a: Ints, gap_b: Ints) -> list[tuple[Ints, Ints]]:
    """Pair the modules in a gap that compute the same under other names; return the calls inside and between them."""
    pairs = _alike(work, gap_a, gap_b)
    inside = [(work.children_a.of(int(gap_a[i])), work.children_b.of(int(gap_b[j]))) for i, j in pairs]
    for i, j in pairs:
        work.pair(gap_a[i : i + 1], gap_b[j : j + 1], VALUE)
    edges = [(-1, -1), *pairs, (len(gap_a), len(gap_b))]
    for (i, j), (k, m) in pairwise(edges):
        inside.append(_opened(work, gap_a[i + 1 : k], gap_b[j + 1 : m]))
    return inside


def _opened(work: Pairing, rows_a: Ints, rows_b: Ints) -> tuple[Ints, Ints]:
    """Replace the calls of a gap by their children, except modules whose counterpart is inside a call of the other side."""
    closed_a = _found_below(work.a, work.tokens_a, rows_a, work.tokens_b.relaxed[work.children_b.below(rows_b)])
    closed_b = _found_below(work.b, work.tokens_b, rows_b, work.tokens_a.relaxed[work.children_a.below(rows_a)])
    if len(closed_a) == len(rows_a) and len(closed_b) == len(rows_b):
        closed_a, closed_b = set(), set()
    return work.children_a.expand(rows_a, closed_a), work.children_b.expand(rows_b, closed_b)


def _found_below(side: Side, tokens: Tokens, rows: Ints, below: Words) -> set[int]:
    modules = rows[side.calls.kind[rows] == side.book.code("module")]
    return set(modules[np.isin(tokens.relaxed[modules], below)].tolist())


def _alike(work: Pairing, gap_a: Ints, gap_b: Ints) -> list[tuple[int, int]]:
    """Return the positions of modules with near first inputs and outputs, each the other's nearest, in order."""
    module = work.a.book.code("module")
    rows_a = [
        i for i, row in enumerate(gap_a.tolist()) if work.children_a.has(row) and work.a.calls.kind[row] == module
    ]
    rows_b = [
        j for j, row in enumerate(gap_b.tolist()) if work.children_b.has(row) and work.b.calls.kind[row] == module
    ]
    if not rows_a or not rows_b or len(rows_a) * len(rows_b) > _MOST_ALIKE:
        return []
    t, r = work.tokens_a.output[gap_a[rows_a]], work.tokens_b.output[gap_b[rows_b]]
    first_a, first_b = _first_input(work.a, gap_a[rows_a]), _first_input(work.b, gap_b[rows_b])
    left, right = (indices.ravel() for indices in np.indices((len(t), len(r))))
    # The output of a model is that of its last layer; only their inputs tell the two apart.
    near = work.near(t[left], r[right]) & work.near(first_a[left], first_b[right])
    near[near] &= work.a.tensors.min[t[left[near]]] < work.a.tensors.max[t[left[near]]]
    apart = np.full(len(left), np.inf)
    gap = work.a.tensors.sketch[t[left[near]]] - work.b.tensors.sketch[r[right[near]]]
    apart[near] = np.linalg.norm(gap, axis=1)
    distance = apart.reshape(len(t), len(r))
    mutual = (distance == distance.min(1, keepdims=True)) & (distance == distance.min(0, keepdims=True))
    got_a, got_b = best_path((mutual & np.isfinite(distance)).astype(np.int32))
    return [(rows_a[i], rows_b[j]) for i, j in zip(got_a.tolist(), got_b.tolist())]


def _first_input(side: Side, rows: Ints) -> Ints:
    """Return the first input of each call, or -1."""
    tensors = np.full(len(rows), -1)
    for index, row in enumerate(rows.tolist()):
        for slot in range(int(side.slots.start[row]), int(side.slots.start[row + 1])):
            if side.book.words[side.slots.slot[slot]].startswith(("input", "kwargs")) and side.slots.tensor[slot] >= 0:
                tensors[index] = side.slots.tensor[slot]
                break
    return tensors


def _pair_moved(work: Pairing, rows_a: Ints, rows_b: Ints) -> list[tuple[int, int]]:
    """Pair modules of the same path that are in another order, before any call is replaced by its children."""
    module = work.a.book.code("module")
    left_a = rows_a[(work.partner_a[rows_a] < 0) & (work.a.calls.kind[rows_a] == module)]
    left_b = rows_b[(work.partner_b[rows_b] < 0) & (work.b.calls.kind[rows_b] == module)]
    got_a, got_b = join(occurrences(work.tokens_a.relaxed[left_a]), occurrences(work.tokens_b.relaxed[left_b]))
    work.pair(left_a[got_a], left_b[got_b], PATH)
    return list(zip(left_a[got_a].tolist(), left_b[got_b].tolist()))


def _gaps(rows_a: Ints, rows_b: Ints, got_a: Ints, got_b: Ints) -> list[tuple[Ints, Ints]]:
    """Return the stretches between pairs in which both sides have unpaired calls."""
    position_a = np.searchsorted(rows_a, got_a)
    position_b = np.searchsorted(rows_b, got_b)
    edges_a = np.concatenate([[-1], position_a, [len(rows_a)]])
    edges_b = np.concatenate([[-1], position_b, [len(rows_b)]])
    open_gap = np.flatnonzero((np.diff(edges_a) > 1) & (np.diff(edges_b) > 1))
    return [(rows_a[edges_a[g] + 1 : edges_a[g + 1]], rows_b[edges_b[g] + 1 : edges_b[g + 1]]) for g in open_gap]
