"""The state of one alignment: who is paired with whom so far, and the two call trees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numscope.compare.align.tokens import Tokens
from numscope.compare.load.side import Flags, Ints, Side

PATH, SEQUENCE, VALUE, MAP, FORWARD, RECOMPUTE = range(6)
REASONS = ("path", "sequence", "value", "map", "forward", "recompute")
NEAR = 0.02  # relative: outputs this near are of the same call, if nothing speaks against it


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
        """Part two rows from whomever they are paired with."""
        if self.partner_a[x] >= 0:
            self.partner_b[self.partner_a[x]] = -1
        if self.partner_b[y] >= 0:
            self.partner_a[self.partner_b[y]] = -1
        self.partner_a[x] = self.partner_b[y] = -1


class Children:
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

    def expand(self, rows: Ints, closed: set[int]) -> Ints:
        """Return rows with each that has children, and is not to stay closed, replaced by them."""
        parts = [np.array([row]) if row in closed or not self.has(row) else self.of(row) for row in rows.tolist()]
        return np.concatenate(parts) if parts else rows

    def below(self, rows: Ints) -> list[int]:
        """Return all rows below the given ones."""
        found = [inner for row in rows.tolist() for inner in self.of(row).tolist()]
        for row in found:
            found += self.of(row).tolist()
        return found

    def has(self, row: int) -> bool:
        return bool(self._start[row + 1] < self._start[row + 2])

    def any(self, rows: Ints) -> bool:
        return bool((self._start[rows + 1] < self._start[rows + 2]).any())


def linked(side: Side) -> Flags:
    """Return which calls are paired through their forward calls: backward calls, not second executions."""
    return (side.calls.forward >= 0) & ~side.calls.recompute
