"""The state of one alignment: the pairs so far, and the two call trees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numscope.compare.align.tokens import Tokens
from numscope.compare.load.side import Flags, Ints, Side

PATH, SEQUENCE, VALUE, MAP, FORWARD, RECOMPUTE = range(6)
REASONS = ("path", "sequence", "value", "map", "forward", "recompute")
NEAR = 0.02  # relative: calls of the same operator whose outputs are this near are the same call


@dataclass
class Pairing:
    """The state of one alignment."""

    a: Side
    b: Side
    tokens_a: Tokens
    tokens_b: Tokens
    partner_a: Ints
    partner_b: Ints
    why: Ints
    gaps: list[tuple[Ints, Ints]]
    children_a: Children
    children_b: Children

    def near(self, t: Ints, r: Ints) -> Flags:
        """Return which pairs of tensors have nearly the same values, by their sketches."""
        a, b = self.a.tensors, self.b.tensors
        there = (t >= 0) & (r >= 0)
        alike = np.zeros(len(t), np.bool_)
        rows = np.flatnonzero(there)
        rows = rows[(a.elements[t[rows]] == b.elements[r[rows]]) & a.sketched[t[rows]] & b.sketched[r[rows]]]
        if len(rows):
            gap = np.linalg.norm(a.sketch[t[rows]] - b.sketch[r[rows]], axis=1)
            alike[rows] = gap <= NEAR * b.l2[r[rows]]
        return alike

    def pair(self, rows_a: Ints, rows_b: Ints, why: int) -> None:
        self.partner_a[rows_a] = rows_b
        self.partner_b[rows_b] = rows_a
        self.why[rows_a] = why

    def unpair(self, x: int, y: int) -> None:
        """Dissolve the pairs that two rows are in."""
        if self.partner_a[x] >= 0:
            self.partner_b[self.partner_a[x]] = -1
        if self.partner_b[y] >= 0:
            self.partner_a[self.partner_b[y]] = -1
        self.partner_a[x] = self.partner_b[y] = -1


class Children:
    """The children of each call, with the calls of dissolved wrappers replaced by their children."""

    def __init__(self, parent: Ints, included: Flags, dissolved: Flags) -> None:
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

    def expand(self, rows: Ints, closed: set[int]) -> Ints:
        """Replace each row by its children, unless it has none or is in `closed`."""
        parts = [np.array([row]) if row in closed or not self.has(row) else self.of(row) for row in rows.tolist()]
        return np.concatenate(parts) if parts else rows

    def below(self, rows: Ints) -> list[int]:
        """Return all descendants of the rows."""
        descendants = [inner for row in rows.tolist() for inner in self.of(row).tolist()]
        for row in descendants:  # which grows meanwhile
            descendants += self.of(row).tolist()
        return descendants

    def has(self, row: int) -> bool:
        return bool(self._start[row + 1] < self._start[row + 2])

    def any(self, rows: Ints) -> bool:
        return bool((self._start[rows + 1] < self._start[rows + 2]).any())


def linked(side: Side) -> Flags:
    """Return which calls are paired through their forward calls: backward calls that are no second executions."""
    return (side.calls.forward >= 0) & ~side.calls.recompute
