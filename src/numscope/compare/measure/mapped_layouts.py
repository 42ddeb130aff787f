"""Measures the tensors that a map file brings into the reference's layout: by their data, or by what no layout changes.

Without data, a tensor's counts, extremes, mean and norm are all that can be compared: no transpose, reshape or other
dtype changes them (but for rounding), a concatenation's follow from its parts', and a part's are bounded by the whole's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numscope.compare.load.side import Flags, Floats, Ints, Side
from numscope.compare.measure.exact import measure_arrays
from numscope.core.dtypes import unit_roundoff

Loader = Callable[[int, int], tuple[NDArray[Any], NDArray[Any]] | None]


@dataclass(frozen=True)
class LaidOut:
    """How one of the target's tensors is brought into the reference's layout."""

    apply: Callable[[NDArray[Any]], NDArray[Any]]
    others: tuple[int, ...] | None = ()  # rows of the tensors that are joined to it; None: they are not in this step
    is_part: bool = False  # only a part of it is compared


@dataclass(frozen=True)
class Rows:
    """The measures to fill in, one row per pair of tensors."""

    columns: dict[str, NDArray[Any]]
    estimated: Flags
    bitwise: Flags
    known: Flags
    unlike: Flags
    error: Floats


@dataclass(frozen=True)
class _Statistics:
    elements: int
    nonfinite: tuple[int, int, int]
    min: float
    max: float
    mean: float
    l2: float


def lay_out(
    a: Side, b: Side, t: Ints, r: Ints, layouts: dict[int, LaidOut], load: Loader | None, least: float, rows: Rows
) -> Flags:
    """Measure, in place, the tensors that have a layout; return which were compared by statistics alone.

    `least` is what statistics can just not tell apart.
    """
    by_statistics = np.zeros(len(t), np.bool_)
    for row in np.flatnonzero(np.isin(t, list(layouts))).tolist():
        layout = layouts[int(t[row])]
        for column in rows.columns.values():
            column[row] = None if column.dtype == object else np.nan
        rows.bitwise[row], rows.known[row], rows.unlike[row] = False, False, False
        rows.error[row], rows.estimated[row] = np.nan, True
        kept = a.tensors.kept[t[row]] and b.tensors.kept[r[row]]
        arrays = load(int(t[row]), int(r[row])) if load is not None and kept else None
        if arrays is not None:
            _from_data(a, b, int(t[row]), int(r[row]), layout, arrays, row, rows)
        else:
            by_statistics[row] = _from_statistics(a, b, int(t[row]), int(r[row]), layout, least, row, rows)
    return by_statistics


def _from_data(
    a: Side, b: Side, t: int, r: int, layout: LaidOut, arrays: tuple[NDArray[Any], NDArray[Any]], row: int, rows: Rows
) -> None:
    mine, theirs = layout.apply(arrays[0]), arrays[1]
    if mine.size != theirs.size:
        return
    words = a.book.words
    dtypes = (words[a.tensors.dtype[t]], words[b.tensors.dtype[r]])
    found = measure_arrays(mine, theirs, dtypes if mine.dtype == arrays[0].dtype else (dtypes[1], dtypes[1]))
    for name, column in rows.columns.items():
        value = getattr(found, name)
        column[row] = value if value is not None or column.dtype == object else np.nan
    rows.known[row], rows.estimated[row] = True, False
    rows.error[row] = np.nan if found.relative_l2 is None else found.relative_l2
    rows.bitwise[row] = mine.dtype == theirs.dtype and mine.tobytes() == theirs.tobytes()


def _from_statistics(a: Side, b: Side, t: int, r: int, layout: LaidOut, least: float, row: int, rows: Rows) -> bool:
    if layout.others is None:
        return False
    mine, theirs = _joined([_of(a, x) for x in (t, *layout.others)]), _of(b, r)
    if not np.isfinite([mine.l2, theirs.l2]).all() or (mine.elements != theirs.elements and not layout.is_part):
        return False
    words = a.book.words
    roundoff = max(unit_roundoff(words[a.tensors.dtype[t]]), unit_roundoff(words[b.tensors.dtype[r]]))
    distance = _beyond(mine, theirs) if layout.is_part else _apart(mine, theirs)
    scale = max(mine.l2, theirs.l2)
    distance = 0.0 if distance <= max(least, 2 * roundoff) * scale else distance
    relative = 0.0 if distance == 0 else distance / theirs.l2 if theirs.l2 > 0 else 1.0
    for name, value in (("euclid", distance), ("relative_l2", relative)):
        rows.columns[name][row] = value
    rows.columns["rmse"][row] = distance / max(theirs.elements, 1) ** 0.5
    rows.known[row], rows.error[row] = True, relative
    rows.unlike[row] = bool(np.isinf(distance))
    return True


def _of(side: Side, row: int) -> _Statistics:
    tensors = side.tensors
    counts = (int(tensors.nan[row]), int(tensors.posinf[row]), int(tensors.neginf[row]))
    values = (float(column[row]) for column in (tensors.min, tensors.max, tensors.mean, tensors.l2))
    return _Statistics(int(tensors.elements[row]), counts, *values)


def _joined(parts: list[_Statistics]) -> _Statistics:
    """Return the statistics of a concatenation."""
    finite = [part.elements - sum(part.nonfinite) for part in parts]
    counts = tuple(sum(part.nonfinite[place] for part in parts) for place in range(3))
    return _Statistics(
        sum(part.elements for part in parts),
        (counts[0], counts[1], counts[2]),
        min(part.min for part in parts),
        max(part.max for part in parts),
        sum(part.mean * count for part, count in zip(parts, finite)) / max(sum(finite), 1),
        float(np.sqrt(sum(part.l2**2 for part in parts))),
    )


def _apart(mine: _Statistics, theirs: _Statistics) -> float:
    """Return the least distance that two tensors of these statistics, in whatever order, can have."""
    if mine.nonfinite != theirs.nonfinite:
        return float("inf")
    root = max(mine.elements, 1) ** 0.5
    means = float(abs(mine.mean - theirs.mean) * root)
    return max(abs(mine.l2 - theirs.l2), abs(mine.max - theirs.max), abs(mine.min - theirs.min), means)


def _beyond(whole: _Statistics, part: _Statistics) -> float:
    """Return how far a tensor's statistics are beyond what any part of the whole can have."""
    if any(count > most for count, most in zip(part.nonfinite, whole.nonfinite)) or part.elements > whole.elements:
        return float("inf")
    return max(0.0, part.l2 - whole.l2, part.max - whole.max, whole.min - part.min)
