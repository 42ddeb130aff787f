"""Pairs tensors whose names say nothing, by their values: equal or nearly equal lines, and weights that are tied."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from numscope.weights.matching.components import Component
from numscope.weights.matching.lines import ALIKE, Axes, Book, coarser, distance, exact_order
from numscope.weights.tensor import Lines, Tensor


def by_value(book: Book, a: Sequence[Tensor], b: Sequence[Tensor]) -> list[Component]:
    """Return components of tensors that have no partner by name."""
    rest_a, rest_b = list(a), list(b)
    components: list[Component] = []
    for theirs in list(rest_b):
        partner = nearest(book, theirs, rest_a)
        if partner is not None:
            components.append(Component([partner], [theirs], "their values"))
            rest_a.remove(partner)
            rest_b.remove(theirs)
    return components + _pieces(book, rest_a, rest_b) + _turned(_pieces(book, rest_b, rest_a))


def _turned(components: list[Component]) -> list[Component]:
    return [Component(component.b, component.a, component.why) for component in components]


def nearest(book: Book, tensor: Tensor, others: Sequence[Tensor]) -> Tensor | None:
    """Return the one of the same shape, or turned, whose values are nearest, or None where none is near."""
    best, least = None, ALIKE
    for other in others:
        error = apart(book, tensor, other)
        if error is not None and error < least:
            best, least = other, error
    return best


def apart(book: Book, a: Tensor, b: Tensor) -> float | None:
    """Return about how far two tensors are apart, the one turned if need be; None where their shapes do not fit."""
    if a.shape == b.shape:
        axes = Axes(0, 0)
    elif len(a.shape) > 1 and (*a.shape[:-2], a.shape[-1], a.shape[-2]) == b.shape:
        axes = Axes(1, 0)
    else:
        return None
    dtype = coarser([a, b])
    if dtype.kind == "c" or not a.size:
        return None
    la, lb = book.lines(a, axes.a, dtype), book.lines(b, axes.b, dtype)
    if la is None or lb is None or len(la) != len(lb):
        return _by_summary(a, b)
    if np.array_equal(la.hash, lb.hash):
        return 0.0
    return float(np.median(distance(la, lb, np.arange(len(lb)))))


def _by_summary(a: Tensor, b: Tensor) -> float | None:
    if a.summary is None or b.summary is None:
        return None
    return 0.0 if a.summary.hash == b.summary.hash and a.dtype == b.dtype else None


def _pieces(book: Book, parts: list[Tensor], wholes: list[Tensor]) -> list[Component]:
    """Return wholes whose lines are those of several parts; the parts become the component's first side."""
    components = []
    for whole in list(wholes):
        if whole.is_vector:
            continue
        for axis in (0, 1):
            width = whole.shape[-2] if axis else whole.width
            fitting = [(part, turn) for part in parts for turn in (0, 1) if _width(part, turn) == width]
            members = _members(book, whole, axis, fitting)
            if members:
                components.append(Component(members, [whole], "their values"))
                for member in members:
                    parts.remove(member)
                wholes.remove(whole)
                break
    return components


def _members(book: Book, whole: Tensor, axis: int, fitting: Sequence[tuple[Tensor, int]]) -> list[Tensor]:
    found: list[Tensor] = []
    covered = 0
    for part, turn in fitting:
        dtype = coarser([whole, part])
        ours, theirs = book.lines(part, turn, dtype), book.lines(whole, axis, dtype)
        if ours is None or theirs is None or part in found or dtype.kind == "c":
            continue
        order = exact_order(theirs.hash, ours.hash)
        if (order >= 0).mean() > ALIKE and _is_telling(ours):
            found.append(part)
            covered += int((order >= 0).sum())
    return found if len(found) > 1 and covered > ALIKE * (whole.size // max(1, _width(whole, axis))) else []


def _is_telling(lines: Lines) -> bool:
    """Tell whether lines are of distinct numbers: rows of zeros are everywhere."""
    return len(np.unique(lines.hash)) > len(lines) // 2


def _width(tensor: Tensor, axis: int) -> int:
    if axis and tensor.is_vector:
        return -1
    return tensor.shape[-2] if axis else tensor.width


def tied(book: Book, a: Sequence[Tensor], b: Sequence[Tensor]) -> list[Component]:
    """Return pairs of matrices with the same values: the one side stores once what the other stores twice."""
    components = []
    used: set[int] = set()
    for theirs in b:
        for ours in a:
            if theirs.is_vector or ours.shape != theirs.shape or id(theirs) in used or id(ours) in used:
                continue
            if apart(book, ours, theirs) == 0.0 and ours.dtype == theirs.dtype:
                components.append(Component([ours], [theirs], "their values"))
                used.update((id(theirs), id(ours)))
    return components
