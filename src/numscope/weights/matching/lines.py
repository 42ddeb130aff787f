"""Finds rows of one set of tensors among the rows, or columns, of another: by their bits, else by what they are near.

All lines of a component, one tensor after the other, are numbered through on either side. An order says for each line of
the reference which of the suspect's lines it is, or -1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from numscope.core.dtypes import FLOATS, AnyDtype
from numscope.weights import summary
from numscope.weights.tensor import Lines, Tensor

Order = NDArray[np.int64]
_OPEN = -2  # a line of which several are alike, and it is not known yet which is meant
_DEEPEST = 64  # parts that a regular order interleaves at most: heads, groups
ALIKE = 0.5  # relative: lines nearer than this are the same in another precision; unrelated lines are √2 apart


class Axes(NamedTuple):
    """The lines of either side: 0 rows, 1 columns."""

    a: int
    b: int

    @property
    def is_turned(self) -> bool:
        """Whether the rows of one side are the columns of the other."""
        return self.a != self.b


_MODES = (Axes(0, 0), Axes(1, 0), Axes(0, 1), Axes(1, 1))


@dataclass(frozen=True)
class Placement:
    """Where the lines of one side are on the other."""

    axes: Axes
    order: Order  # by the reference's lines
    equal: NDArray[np.bool_]  # which of the reference's lines have the same bits, in the coarser of both dtypes
    error: NDArray[np.float64]  # estimated relative error of each of the reference's lines; 0 where equal
    counts_a: tuple[int, ...]  # lines of each of the suspect's tensors
    counts_b: tuple[int, ...]

    @property
    def found(self) -> float:
        """The share of the reference's lines that are among the suspect's."""
        near = self.equal | (self.error < ALIKE)
        return float(near.mean()) if near.size else 0.0

    @property
    def score(self) -> tuple[float, float]:
        """How well it explains the reference: by lines of the same bits where these are the most, else by near ones."""
        equal = float(self.equal.mean()) if self.equal.size else 0.0
        return (equal if equal > ALIKE else 0.0), self.found

    @property
    def is_identity(self) -> bool:
        """Whether all lines are where they were."""
        is_untouched = not self.axes.is_turned and len(self.order) == sum(self.counts_a)
        return bool(is_untouched and np.array_equal(self.order, np.arange(len(self.order))))


class Book:
    """The fingerprints of lines, each measured once."""

    def __init__(self) -> None:
        self._held: dict[tuple[Tensor, int, str], Lines] = {}

    def lines(self, tensor: Tensor, axis: int, dtype: AnyDtype) -> Lines | None:
        """Return the lines of a tensor in a dtype; those of a summary are of its own dtype. None where there are none."""
        if tensor.read is None or (tensor.summary is not None and tensor.summary.rows is not None):
            if tensor.summary is None:
                return None
            return tensor.summary.columns if axis else tensor.summary.rows
        key = tensor, axis, dtype.name
        held = self._held.get(key)
        if held is None:
            held = summary.columns_of(tensor, dtype) if axis else summary.rows_of(tensor, dtype)
            self._held[key] = held
        return held

    def all(self, tensors: Sequence[Tensor], axis: int, dtype: AnyDtype) -> Lines | None:
        """Return the lines of tensors, one after the other; None where they differ in width."""
        found = [self.lines(tensor, axis, dtype) for tensor in tensors]
        parts = [part for part in found if part is not None]
        if len(parts) != len(found) or not parts or len({part.width for part in parts}) != 1:
            return None
        return summary.join(parts)


def coarser(tensors: Sequence[Tensor]) -> AnyDtype:
    """Return the dtype with the fewest digits: what was cast to it has the same bits there."""
    best = min(tensors, key=lambda tensor: FLOATS[tensor.dtype].digits if tensor.dtype in FLOATS else 64)
    return summary.dtype_of(best)


def place(book: Book, a: Sequence[Tensor], b: Sequence[Tensor]) -> Placement | None:
    """Return how the lines of the suspect's tensors make the reference's, or None where they do not."""
    dtype = coarser([*a, *b])
    if dtype.kind == "c":
        return None
    best: Placement | None = None
    for axes in _MODES:
        if any(axis and tensor.is_vector for axis, side in zip(axes, (a, b)) for tensor in side):
            continue
        ours, theirs = _widths(a, axes.a), _widths(b, axes.b)
        if len(ours) != 1 or ours != theirs:
            continue
        la, lb = book.all(a, axes.a, dtype), book.all(b, axes.b, dtype)
        if la is None or lb is None:
            continue
        placement = _placed(axes, la, lb, _counts(a, axes.a), _counts(b, axes.b))
        if best is None or placement.score > best.score:
            best = placement
        if best.found > 0.999:
            break
    return best


def _widths(tensors: Sequence[Tensor], axis: int) -> set[int]:
    return {tensor.shape[-2] if axis else tensor.width for tensor in tensors}


def _counts(tensors: Sequence[Tensor], axis: int) -> tuple[int, ...]:
    return tuple(tensor.size // max(1, tensor.shape[-2] if axis else tensor.width) for tensor in tensors)


def _placed(axes: Axes, a: Lines, b: Lines, counts_a: tuple[int, ...], counts_b: tuple[int, ...]) -> Placement:
    order = exact_order(a.hash, b.hash)
    equal = order >= 0
    if equal.mean() < 0.5:
        near = _nearest_order(a, b, counts_a, counts_b)
        if near is not None:
            order = np.where(equal, order, near) if _agree(order, near, equal) else near
            equal &= order >= 0
            equal[equal] = a.hash[order[equal]] == b.hash[equal]
    order = filled(order, len(a))
    error = distance(a, b, order)
    error[equal] = 0
    return Placement(axes, order, equal, error, counts_a, counts_b)


def _agree(order: Order, near: Order, equal: NDArray[np.bool_]) -> bool:
    return bool(equal.any()) and bool(np.array_equal(order[equal], near[equal]))


def exact_order(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> Order:
    """Return for each hash of `b` where it is in `a`, or -1; of several places the one beside its neighbour's."""
    sorting = np.argsort(a, kind="stable")
    ordered = a[sorting]
    at = np.minimum(np.searchsorted(ordered, b), max(0, len(a) - 1))
    order: Order = np.where(ordered[at] == b, sorting[at], -1) if len(a) else np.full(len(b), -1, np.int64)
    following = np.minimum(at + 1, max(0, len(a) - 1))
    alike = np.flatnonzero((order >= 0) & (following > at) & (ordered[following] == b)) if len(a) else order[:0]
    if not len(alike):
        return order
    # Several lines are alike (padding, untrained tokens): the one beside its neighbour's is meant, else the same place.
    order[alike] = _OPEN
    for step, lines in ((1, alike), (-1, alike[::-1])):
        for line in lines:
            before = line - step
            if order[line] == _OPEN and 0 <= before < len(order) and order[before] >= 0:
                meant = order[before] + step
                if 0 <= meant < len(a) and a[meant] == b[line]:
                    order[line] = meant
    still = alike[order[alike] == _OPEN]
    same = (still < len(a)) & (a[np.minimum(still, len(a) - 1)] == b[still])
    order[still] = np.where(same, still, sorting[at[still]])
    return order


def filled(order: Order, count: int) -> Order:
    """Return an order whose gaps are closed where what is before and behind them says how."""
    order = order.copy()
    free = np.ones(count, bool)
    free[order[order >= 0]] = False
    gap = order < 0
    if not gap.any() or gap.all():
        return order
    edges = np.flatnonzero(np.diff(np.concatenate([[0], gap.astype(np.int8), [0]])))
    for start, stop in zip(edges[::2], edges[1::2]):
        length = stop - start
        before = order[start - 1] + 1 if start else None
        behind = order[stop] - length if stop < len(order) else None
        for first in (before, behind):
            if first is not None and first >= 0 and first + length <= count and free[first : first + length].all():
                order[start:stop] = np.arange(first, first + length)
                free[first : first + length] = False
                break
    return order


def distance(a: Lines, b: Lines, order: Order) -> NDArray[np.float64]:
    """Return the estimated relative error of each of the reference's lines; √2 of one that is not there."""
    there = order >= 0
    error = np.full(len(order), math.sqrt(2.0))
    difference = a.sums[order[there]].astype(np.float64) - b.sums[there]
    norm = np.maximum(b.norm[there], a.norm[order[there]]).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.sqrt((difference**2).mean(axis=1)) / norm
    error[there] = np.where(norm > 0, relative, 0.0)
    return error


def _nearest_order(a: Lines, b: Lines, counts_a: tuple[int, ...], counts_b: tuple[int, ...]) -> Order | None:
    """Return the regular order in which the suspect's lines are nearest to the reference's, or None."""
    best, least = None, ALIKE
    for order in regular_orders(counts_a, counts_b):
        error = np.median(distance(a, b, order))
        if error < least:
            best, least = order, float(error)
    return best


def regular_orders(counts_a: tuple[int, ...], counts_b: tuple[int, ...]) -> Iterator[Order]:
    """Yield the orders in which conversions put lines: as they are, interleaved, in shards, in groups of heads."""
    total_a, total_b = sum(counts_a), sum(counts_b)
    if total_a == total_b:
        yield np.arange(total_b)
    elif abs(total_a - total_b) < max(total_a, total_b):  # padded, or cut
        line = np.arange(total_b)
        yield np.where(line < total_a, line, -1)
    if total_a != total_b:
        return
    if len(counts_a) == 1 and len(counts_b) == 1:
        yield from (order for _, order in interleaved(total_a))
    for groups in _divisors(math.gcd(*counts_a)) if len(counts_a) > 1 else ():
        if groups > 1:
            yield in_groups(counts_a, groups)
    for groups in _divisors(math.gcd(*counts_b)) if len(counts_b) > 1 else ():
        if groups > 1:
            yield np.argsort(in_groups(counts_b, groups), kind="stable")


def interleaved(count: int) -> Iterator[tuple[tuple[int, int, int], Order]]:
    """Yield (blocks, parts, lines) and the order in which each block's parts are interleaved line by line."""
    for blocks in _divisors(count):
        for parts in _divisors(count // blocks):
            lines = count // blocks // parts
            if 1 < parts <= _DEEPEST and lines > 1:
                order = np.arange(count).reshape(blocks, parts, lines).swapaxes(1, 2).reshape(-1)
                yield (blocks, parts, lines), order


def in_groups(counts: tuple[int, ...], groups: int) -> Order:
    """Return the order that takes a share of each tensor in turn: query, key and value of a group of heads."""
    starts = np.cumsum([0, *counts[:-1]])
    shares = [start + np.arange(count).reshape(groups, -1) for start, count in zip(starts, counts)]
    return np.concatenate(shares, axis=1).reshape(-1)


def _divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0] if count < 1 << 12 else _large_divisors(count)


def _large_divisors(count: int) -> list[int]:
    low = [n for n in range(1, math.isqrt(count) + 1) if count % n == 0]
    return sorted({*low, *(count // n for n in low)})
