"""Pairs backward calls through their forward calls, and a checkpoint's second execution through its first."""

from __future__ import annotations

import numpy as np

from numscope.compare.align.pairing import FORWARD, RECOMPUTE, VALUE, Pairing, linked
from numscope.compare.align.tokens import join, occurrences
from numscope.compare.align.trees import walk
from numscope.compare.load.side import Ints, Side

_MANY = np.uint64(1 << 24)  # more than a codebook has words


def first_executions(side: Side) -> Ints:
    """Return for each call the row of its first execution: itself, unless it is a checkpoint's second execution."""
    rows = np.arange(len(side.calls))
    again = np.flatnonzero(side.calls.recompute)
    if not len(again):
        return rows
    first = np.flatnonzero(~side.calls.recompute & (side.calls.forward < 0))
    by_name = {side.calls.name(row): row for row in first.tolist()}
    primary = rows.copy()
    mixed = (side.calls.op * 1_000_003 + side.calls.module).astype(np.uint64)
    got_again, got_first = join(occurrences(mixed[again]), occurrences(mixed[first]))
    primary[again] = -1
    primary[again[got_again]] = first[got_first]
    for row in again.tolist():
        recorded = int(side.calls.forward[row])  # capture says which execution this one repeats
        primary[row] = recorded if recorded >= 0 else by_name.get(side.calls.name(row), primary[row])
    return primary


def pair_backward(work: Pairing, primary_a: Ints, primary_b: Ints) -> None:
    """Pair backward calls whose forward calls are paired: in order within each operator, then the rest in order."""
    a, b = work.a.calls, work.b.calls
    rows_a = np.flatnonzero(linked(work.a) & (work.partner_a < 0))
    rows_b = np.flatnonzero(linked(work.b) & (work.partner_b < 0))
    first_a, first_b = primary_a[a.forward[rows_a]], primary_b[b.forward[rows_b]]
    there = (first_a >= 0) & (work.partner_a[first_a] >= 0)
    rows_a, first_a = rows_a[there], first_a[there]
    rows_b, first_b = rows_b[first_b >= 0], first_b[first_b >= 0]
    meets_a, meets_b = work.partner_a[first_a].astype(np.uint64), first_b.astype(np.uint64)
    for by_operator in (True, False):
        left_a, left_b = work.partner_a[rows_a] < 0, work.partner_b[rows_b] < 0
        rows_a, first_a, meets_a = rows_a[left_a], first_a[left_a], meets_a[left_a]
        rows_b, meets_b = rows_b[left_b], meets_b[left_b]
        keys_a, keys_b = (
            meets * _MANY + (calls.op[rows] + 1).astype(np.uint64) if by_operator else meets
            for meets, calls, rows in ((meets_a, a, rows_a), (meets_b, b, rows_b))
        )
        got_a, got_b = join(occurrences(keys_a), occurrences(keys_b))
        work.pair(rows_a[got_a], rows_b[got_b], FORWARD)
        inherited = work.why[first_a[got_a]] == VALUE
        work.why[rows_a[got_a][inherited]] = VALUE
        for x, y in zip(rows_a[got_a].tolist(), rows_b[got_b].tolist()):
            if work.children_a.has(x) and work.children_b.has(y):  # a hand-written backward has calls of its own
                walk(work, (work.children_a.of(x), work.children_b.of(y)))


def pair_repeats(work: Pairing, primary_a: Ints, primary_b: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return all pairs. A checkpoint's second execution is paired with the other side's, or else with its first execution."""
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
    paired = other >= 0
    idle_b = np.setdiff1d(again_b, other[paired])
    return (
        np.concatenate([pairs_a, again_a[paired]]),
        np.concatenate([pairs_b, other[paired]]),
        np.concatenate([why, np.full(int(paired.sum()), RECOMPUTE)]),
        again_a[~paired],
        idle_b,
    )
