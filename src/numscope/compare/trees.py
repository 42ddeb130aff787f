"""Walks two call trees together from their roots, and pairs the children of paired calls in order.

A call that stays alone but has inner calls is opened, and its inner calls take its place, so that a wrapper, a fused
operator or a module that only one side has hides nothing.
"""

from __future__ import annotations

import numpy as np

from numscope.compare.pairing import PATH, SEQUENCE, Pairing
from numscope.compare.sequence import pair_sequences
from numscope.compare.side import Flags, Ints, Side
from numscope.compare.tokens import join, occurrences
from numscope.compare.wrappers import WRAPPER_CLASSES


def same_tree(work: Pairing, tree_a: np.ndarray, tree_b: np.ndarray) -> bool:
    rows_a, rows_b = np.flatnonzero(tree_a), np.flatnonzero(tree_b)
    if len(rows_a) != len(rows_b) or not np.array_equal(work.tokens_a.exact[rows_a], work.tokens_b.exact[rows_b]):
        return False
    place_a, place_b = np.cumsum(tree_a), np.cumsum(tree_b)
    parent_a, parent_b = work.a.calls.parent[rows_a], work.b.calls.parent[rows_b]
    return np.array_equal(np.where(parent_a < 0, -1, place_a[parent_a]), np.where(parent_b < 0, -1, place_b[parent_b]))


def lone_wrappers(side: Side, other: Side) -> Flags:
    """Return which calls are of wrapper modules that the other side does not have."""
    classes = [code for word, code in side.book.numbers.items() if word in WRAPPER_CLASSES]
    module = side.book.code("module")
    mine = np.isin(side.calls.module_class, classes) & (side.calls.kind == module)
    theirs = other.calls.module_class[other.calls.kind == module]
    return np.asarray(mine & ~np.isin(side.calls.module_class, theirs))


def walk(work: Pairing, start: tuple[Ints, Ints] | None = None) -> None:
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


def _pair_moved(work: Pairing, rows_a: Ints, rows_b: Ints) -> list[tuple[int, int]]:
    """Pair modules of the same path that changed places, before anything is opened; return the pairs."""
    module = work.a.book.code("module")
    left_a = rows_a[(work.partner_a[rows_a] < 0) & (work.a.calls.kind[rows_a] == module)]
    left_b = rows_b[(work.partner_b[rows_b] < 0) & (work.b.calls.kind[rows_b] == module)]
    got_a, got_b = join(occurrences(work.tokens_a.relaxed[left_a]), occurrences(work.tokens_b.relaxed[left_b]))
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
