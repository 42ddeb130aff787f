"""Measures tensors that a map file brings into the reference's layout: by their data, or else by their statistics.

Counts, extremes, mean and norm can be compared without data: a transpose, reshape or cast changes none of them (but for
rounding), those of a concatenation follow from its parts, and those of a part are bounded by the whole tensor's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from numscope.compare.load.side import Flags, Floats, Ints, Side
from numscope.compare.measure.exact import measure_arrays
from numscope.core.dtypes import AnyArray, unit_roundoff

Loader = Callable[[int, int], tuple[AnyArray, AnyArray] | None]


@dataclass(frozen=True)
class LaidOut:
    """The conversion of one of the target's tensors into the reference's layout."""

    apply: Callable[[AnyArray], AnyArray]
    others: tuple[int, ...] | None = ()  # rows of the tensors that are joined to it; None: one is not in this step
    is_part: bool = False  # only a part of it is compared


@dataclass(frozen=True)
class Rows:
    """The measures to fill in, one row per pair of tensors."""

    columns: dict[str, AnyArray]
    estimated: Flags
    bitwise: Flags
    known: Flags
    unlike: Flags
    error: Floats


@dataclass(frozen=True)
class _Statistics:
    elements: int
    nan: int
    posinf: int
    neginf: int
    min: float
    max: float
    mean: float
    l2: float

    @property
    def nonfinite(self) -> tuple[int, int, int]:
        """The counts of NaN, inf and -inf."""
        return self.nan, self.posinf, self.neginf


def lay_out(
    a: Side, b: Side, t: Ints, r: Ints, layouts: dict[int, LaidOut], load: Loader | None, least: float, rows: Rows
) -> Flags:
    """Measure, in place, the tensors that have a layout; return which were compared by statistics alone.

    `least` is the largest relative difference that statistics cannot tell from zero.
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
    a: Side, b: Side, t: int, r: int, layout: LaidOut, arrays: tuple[AnyArray, AnyArray], row: int, rows: Rows
) -> None:
    target, theirs = arrays
    mine = layout.apply(target)
    if mine.size != theirs.size:
        return
    words = a.book.words
    reference_dtype = words[b.tensors.dtype[r]]
    target_dtype = words[a.tensors.dtype[t]] if mine.dtype == target.dtype else reference_dtype
    exact = measure_arrays(mine, theirs, (target_dtype, reference_dtype))
    for name, column in rows.columns.items():
        value = getattr(exact, name)
        column[row] = value if value is not None or column.dtype == object else np.nan
    rows.known[row], rows.estimated[row] = True, False
    rows.error[row] = np.nan if exact.relative_l2 is None else exact.relative_l2
    rows.bitwise[row] = mine.dtype == theirs.dtype and mine.tobytes() == theirs.tobytes()


def _from_statistics(a: Side, b: Side, t: int, r: int, layout: LaidOut, least: float, row: int, rows: Rows) -> bool:
    if layout.others is None:
        return False
    mine, theirs = _joined([_of(a, x) for x in (t, *layout.others)]), _of(b, r)
    if not np.isfinite([mine.l2, theirs.l2]).all() or (mine.elements != theirs.elements and not layout.is_part):
        return False
    words = a.book.words
    roundoff = max(unit_roundoff(words[a.tensors.dtype[t]]), unit_roundoff(words[b.tensors.dtype[r]]))
    distance = _distance_of_part(mine, theirs) if layout.is_part else _distance(mine, theirs)
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
    return _Statistics(
        elements=int(tensors.elements[row]),
        nan=int(tensors.nan[row]),
        posinf=int(tensors.posinf[row]),
        neginf=int(tensors.neginf[row]),
        min=float(tensors.min[row]),
        max=float(tensors.max[row]),
        mean=float(tensors.mean[row]),
        l2=float(tensors.l2[row]),
    )


def _joined(parts: list[_Statistics]) -> _Statistics:
    """Return the statistics of a concatenation."""
    finite = [part.elements - sum(part.nonfinite) for part in parts]
    return _Statistics(
        elements=sum(part.elements for part in parts),
        nan=sum(part.nan for part in parts),
        posinf=sum(part.posinf for part in parts),
        neginf=sum(part.neginf for part in parts),
        min=min(part.min for part in parts),
        max=max(part.max for part in parts),
        mean=sum(part.mean * count for part, count in zip(parts, finite)) / max(sum(finite), 1),
        l2=float(np.sqrt(sum(part.l2**2 for part in parts))),
    )


def _distance(mine: _Statistics, theirs: _Statistics) -> float:
    """Return the least distance of two tensors of these statistics, in any order of their elements."""
    if mine.nonfinite != theirs.nonfinite:
        return float("inf")
    root = max(mine.elements, 1) ** 0.5
    means = float(abs(mine.mean - theirs.mean) * root)
    return max(abs(mine.l2 - theirs.l2), abs(mine.max - theirs.max), abs(mine.min - theirs.min), means)


def _distance_of_part(whole: _Statistics, part: _Statistics) -> float:
    """Return the least distance of a tensor of the statistics `part` from any part of the whole tensor."""
    if any(count > most for count, most in zip(part.nonfinite, whole.nonfinite)) or part.elements > whole.elements:
        return float("inf")
    return max(0.0, part.l2 - whole.l2, part.max - whole.max, whole.min - part.min)
