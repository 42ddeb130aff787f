"""Pairs the calls of the target with those of the reference.

The call trees are walked together from their roots (trees.py); the children of two paired calls are paired in order
(sequence.py). Calls that are still unpaired are paired by value (leftovers.py). Backward calls are paired through their
forward calls, and a checkpoint's second execution through its first (dependent_calls.py). A map file overrules all of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from numscope.compare.align.dependent_calls import first_executions, pair_backward, pair_repeats
from numscope.compare.align.leftovers import pair_by_value, pair_crossed, pair_optimizers, pair_reordered
from numscope.compare.align.pairing import MAP, PATH, SEQUENCE, Children, Pairing, linked
from numscope.compare.align.tokens import tokens
from numscope.compare.align.trees import lone_wrappers, same_tree, walk
from numscope.compare.load.side import Ints, Side


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


def align(a: Side, b: Side, forced: Iterable[tuple[int, int]] = ()) -> Alignment:
    """Return the alignment of target `a` with reference `b`; `forced` are pairs of rows that a map file names."""
    primary_a, primary_b = first_executions(a), first_executions(b)
    linked_a, linked_b = linked(a), linked(b)
    tree_a, tree_b = ~a.calls.recompute & ~linked_a, ~b.calls.recompute & ~linked_b
    wrappers_a, wrappers_b = lone_wrappers(a, b), lone_wrappers(b, a)
    work = Pairing(
        a,
        b,
        tokens(a),
        tokens(b),
        np.full(len(a.calls), -1),
        np.full(len(b.calls), -1),
        np.full(len(a.calls), -1),
        [],
        Children(a.calls.parent, tree_a, wrappers_a),
        Children(b.calls.parent, tree_b, wrappers_b),
    )
    named = [(x, y) for x, y in forced]
    if not named and same_tree(work, tree_a, tree_b):
        rows_a, rows_b = np.flatnonzero(tree_a), np.flatnonzero(tree_b)
        work.pair(rows_a, rows_b, SEQUENCE)
        work.why[rows_a[a.calls.kind[rows_a] == a.book.code("module")]] = PATH
        pair_crossed(work)
    else:
        pair_optimizers(work)
        walk(work)
        for x, y in named:
            work.unpair(x, y)
            work.pair(np.array([x]), np.array([y]), MAP)
            if work.children_a.has(x) and work.children_b.has(y):
                walk(work, (work.children_a.of(x), work.children_b.of(y)))
        pair_crossed(work)
        pair_reordered(work)
        pair_by_value(work)
    pair_backward(work, primary_a, primary_b)
    pairs_a, pairs_b, why, idle_a, idle_b = pair_repeats(work, primary_a, primary_b)
    alone_a = np.flatnonzero((work.partner_a < 0) & ~a.calls.recompute)
    alone_b = np.flatnonzero((work.partner_b < 0) & ~b.calls.recompute)
    sort = np.argsort(pairs_a, kind="stable")
    return Alignment(pairs_a[sort], pairs_b[sort], why[sort], alone_a, alone_b, idle_a, idle_b)
