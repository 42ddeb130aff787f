"""How far an output is from what exact arithmetic gives, in terms that say whether the device may be that far off.

Rounding the exact result to the output's dtype costs half a unit of its last place, which every device may spend. What is
beyond that is measured in `units`: of the roundoff of float32, in which devices compute inside, times the size of what
went into the element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numscope.capture.torch.verify.lens import Array
from numscope.core.dtypes import FLOATS, FloatFormat

_INSIDE = 2.0**-24  # roundoff of float32
# What is left where a number inside, below the smallest normal one, became zero, and was multiplied by others after.
_FLUSHED = (2.0**-118, 2.0**-1014)  # of float32, of float64
_SLACK = 1 + 2.0**-20  # of the float64 in which the exact result is computed


class Compared(NamedTuple):
    """A part of an output beside the exact result, and the size of what each element was made of."""

    got: Array
    exact: Array
    scale: Array | float  # in the terms of `units`
    dtype: str
    box: Any = None  # the places of the part in the output, where it is a box
    shape: tuple[int, ...] = ()  # of the output
    flushes: bool = False  # numbers below the smallest normal one may become zero
    whole: bool = False  # it is all of the output
    projected: bool = False  # rows of the output times random signs
    allowed: Array | None = None  # what rounding the output to its dtype costs, where that is not half a last place
    slot: int = 0  # which output of the call
    inner: Array | float = 0.0  # the size of what is rounded once on the way, which every device may do


@dataclass(frozen=True)
class Deviation:
    """The own error of one part of an output."""

    elements: int
    squared: float  # Σ of the squares of the errors
    norm: float  # Σ of the squares of the exact result
    ulp: float  # the largest error in units of the last place of an element of usual size
    units: float  # the largest excess
    excess: NDArray[np.float64]  # of each element, in units


def deviation(part: Compared, roughness: float = 0.0) -> Deviation:
    """Measure one part of an output; `roughness`: roundoff to which the device may round the operands (TF32)."""
    got, exact = np.asarray(part.got, np.float64), np.asarray(part.exact, np.float64)
    form = FLOATS.get(part.dtype)
    if got.shape != exact.shape:
        exact = np.broadcast_to(exact, got.shape)
    if form is None:
        off = got != exact
        count = int(off.sum())
        norm = float(np.sum(exact * exact)) if exact.size else 0.0
        distance = float(np.sum((got[off] - exact[off]) ** 2)) if count else 0.0
        return Deviation(
            got.size, distance, norm, float(count > 0), math.inf if count else 0.0, np.where(off, np.inf, 0.0)
        )
    with np.errstate(all="ignore"):
        known = np.isfinite(exact)
        error = np.abs(got - exact)
        size: Array = np.abs(exact)
        over = known & (size >= form.overflow_edge * (1 - 2.0**-20))
        error = np.where(known, error, np.where(np.isnan(exact) | (got == exact), 0.0, np.inf))
        error = np.where(over & (np.abs(got) >= form.largest * 0.99), 0.0, error)
        error = np.where(np.isnan(error), np.inf, error)
        half = last_place(size, form) / 2 if part.allowed is None else part.allowed * form.unit_roundoff
        allowed = half * _SLACK + (_FLUSHED[form.bits == 64] if part.flushes else 0.0)
        scale = np.broadcast_to(np.asarray(part.scale, np.float64), got.shape)
        plain = _INSIDE if form.bits < 64 else form.unit_roundoff
        inside = max(plain, roughness)
        beyond = np.maximum(error - allowed - plain * _SLACK * np.asarray(part.inner), 0.0)
        excess = np.where(beyond > 0, beyond / np.maximum(inside * np.maximum(scale, size), form.smallest / 2), 0.0)
        excess = np.where(np.isnan(excess), np.where(np.isfinite(error), 0.0, np.inf), excess)
        usual = math.sqrt(float(np.mean(np.square(np.where(known & ~over, size, 0.0))))) if size.size else 0.0
        places = last_place(np.maximum(np.where(known, size, 0.0), usual), form)
        ulps = np.where(error > 0, error / places, 0.0)
    finite = np.where(known & ~over, exact, 0.0)
    wrong = np.where(np.isfinite(error), error, 0.0)
    lost = bool(np.isinf(error).any())
    return Deviation(
        got.size,
        math.inf if lost else float(np.sum(wrong * wrong)),
        float(np.sum(finite * finite)),
        float(ulps.max(initial=0.0)),
        float(excess.max(initial=0.0)),
        excess,
    )


def last_place(size: Array, form: FloatFormat) -> Array:
    """Return the distance of neighbours around numbers of these sizes."""
    _, exponent = np.frexp(np.minimum(size, form.largest))
    return np.asarray(np.maximum(np.ldexp(1.0, exponent - form.digits), form.smallest))
