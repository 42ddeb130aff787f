"""Measures masked tensors by class: where they are filled exactly, and the rest relatively.

A fill is a value far beyond all others, as masked attention scores have it: the lowest number of a dtype, -1e9, infinities.
It hides all else: of a norm of 1e39 nothing is left to see.

With data, elements that both sides fill are left out, and what remains is compared. A fingerprint tells less:

    how many are filled     the norm over the fill, squared
    where                   the sketch over the fill: whole numbers, the signed counts of the fills in each bucket
    how far apart the rest is                       unknown: the fill's digits leave no room for others

The sketch of a float32 or bfloat16 mask with that dtype's lowest number is beyond float32, in which runs keep it: there
equal bits alone tell that the same is filled, and all else is unknown.
"""

from __future__ import annotations

import numpy as np

from numscope.compare.align.arguments import MASKS_FROM
from numscope.compare.load.side import Flags, Floats, Ints, Side
from numscope.compare.measure.mapped_layouts import Loader
from numscope.core.dtypes import AnyArray

_FILLS_FROM = 1e4  # the least that is used as a fill
_BEYOND = 1e3  # times all others
_WHOLE = 0.05  # a count this near to a whole number is one


def filled(side: Side, rows: Ints) -> Flags:
    """Return which tensors hold a value far beyond all others, as masked attention scores do: it hides their errors."""
    low, high = np.abs(side.tensors.min[rows]), np.abs(side.tensors.max[rows])
    most, least = np.fmax(low, high), np.fmin(low, high)
    return np.asarray((most >= _FILLS_FROM) & (most > _BEYOND * np.fmax(least, 1.0)))


def look_through_masks(
    a: Side, b: Side, t: Ints, r: Ints, rows: Ints, error: Floats, has_data: Flags, load: Loader | None
) -> None:
    """Put in place of the error of masked tensors that of their classes, NaN where nothing is known of the rest."""
    chosen = rows[filled(a, t[rows]) & filled(b, r[rows])]
    for row in chosen.tolist():
        arrays = load(int(t[row]), int(r[row])) if load is not None and has_data[row] else None
        error[row] = _of_elements(*arrays) if arrays is not None else _of_fills(a, int(t[row]), b, int(r[row]))
    # Nothing but zeros and infinities: a sketch leaves these out, so that where they are does not show.
    ta, tb = a.tensors, b.tensors
    infinite = (ta.posinf[t] + ta.neginf[t] + ta.nan[t] > 0) & ~(ta.l2[t] > 0) & ~(tb.l2[r] > 0) & ~has_data
    error[rows[infinite[rows]]] = np.nan


def _of_elements(target: AnyArray, reference: AnyArray) -> float:
    """Return the relative error of the elements that one side at least does not fill; NaN where both fill all but zeros."""
    x, y = (np.asarray(array, dtype=np.float64).reshape(-1) for array in (target, reference))
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    both = (np.abs(x) >= _FILLS_FROM) & (np.abs(y) >= _FILLS_FROM) & (np.sign(x) == np.sign(y))
    masks = (np.abs(x) > MASKS_FROM) & (np.abs(y) > MASKS_FROM)
    most = (np.abs(x) == np.abs(x).max()) & (np.abs(y) == np.abs(y).max())
    open_ = ~((both & (same | masks)) | most | (same & ~np.isfinite(x)))
    x, y = x[open_], y[open_]
    if not (np.isfinite(x) & np.isfinite(y)).all():
        return np.inf
    # Of two pure masks, the target's may cover more: then the reference is zero wherever they differ.
    norm = float(np.linalg.norm(y)) or float(np.linalg.norm(x))
    return float(np.linalg.norm(x - y)) / norm if norm > 0 else np.nan


def _of_fills(a: Side, t: int, b: Side, r: int) -> float:
    """Return how far apart the filled elements of two tensors are, of which only fingerprints are known.

    That is the distance of the two masks as zeros and ones, relative to the reference's.
    """
    (mine, where), (theirs, there) = _fills(a, t), _fills(b, r)
    if np.isnan(mine) or np.isnan(theirs):
        return np.nan
    apart = float(np.linalg.norm(where - there)) if where is not None and there is not None else 0.0
    apart = max(apart, abs(mine - theirs) ** 0.5)
    return apart / max(theirs, 1.0) ** 0.5 if apart else np.nan


def _fills(side: Side, tensor: int) -> tuple[float, Floats | None]:
    """Return how many elements have the fill, NaN where others count too, and their sketch; None where that is not known."""
    tensors = side.tensors
    low, high = float(tensors.min[tensor]), float(tensors.max[tensor])
    fill = low if abs(low) >= abs(high) else high
    with np.errstate(over="ignore"):
        count = (float(tensors.l2[tensor]) / abs(fill)) ** 2
    nearest = float(np.round(count))
    # What the norm cannot tell: beyond its digits a count is no whole number by chance alone.
    if not abs(count - nearest) <= _WHOLE or not 1 <= nearest * 2e-6 + 1 <= 1 + _WHOLE:
        return np.nan, None
    if not tensors.sketched[tensor]:
        return nearest, None
    where = tensors.sketch[tensor] / fill
    whole = np.round(where)
    known = bool(np.isfinite(where).all()) and bool((np.abs(where - whole) <= _WHOLE).all())
    return nearest, whole if known else None
