"""Distance in units in the last place: how many numbers of the dtype lie between two values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_INTEGER: dict[int, Any] = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_DIGITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53, "complex64": 24, "complex128": 53}
_SAMPLE = 1 << 14

Statistics = tuple[float | None, float | None, float | None]


class Ulps:
    """Median, 99 % quantile and maximum of the distance; None where the dtypes differ or have no ulp.

    The quantiles of a tensor of more than 16,384 elements are those of an even sample; the maximum is of all: an element
    can only be further off than the furthest so far if its relative error is large enough, and only those are looked at.
    """

    def __init__(self, a: NDArray[Any], b: NDArray[Any], dtypes: tuple[str, str]) -> None:
        self.a, self.b = a, b
        rounded = dtypes[0].startswith(("float", "bfloat", "complex"))
        self.known = dtypes[0] == dtypes[1] and rounded and a.dtype == b.dtype and a.dtype.itemsize in _INTEGER
        self.scale = 2.0 ** _DIGITS.get(dtypes[0], 4)
        self.top = 0.0
        self.sample = np.zeros(0)
        if self.known:
            stride = max(1, a.size // _SAMPLE)
            sample = _distance(a[::stride], b[::stride])
            self.sample = sample[~np.isnan(sample)]
            self.top = float(self.sample.max()) if self.sample.size else 0.0

    def look(self, relative: NDArray[Any], begin: int) -> None:
        """Look at the elements from `begin` on whose relative error may be further off than any so far."""
        if not self.known:
            return
        end = begin + len(relative)
        if self.a.dtype.itemsize <= 2:  # few bits: look at all of them
            found = _distance_of_few_bits(self.a[begin:end], self.b[begin:end])
        elif float(relative.max()) * self.scale <= self.top:
            return
        else:
            far = begin + np.flatnonzero(relative > self.top / self.scale)
            found = float(np.nanmax(_distance(self.a[far], self.b[far]), initial=0.0))
        self.top = max(self.top, found)

    def result(self) -> Statistics:
        """Return median, 99 % quantile and maximum."""
        if not self.known or not self.sample.size:
            return None, None, None
        median, high = np.quantile(self.sample, [0.5, 0.99], method="nearest")
        return float(median), float(high), self.top


def _ordered(x: NDArray[Any]) -> NDArray[Any]:
    """Return integers in the order of the values, one apart for neighbours; both zeros are 0."""
    kind = _INTEGER[x.dtype.itemsize]
    bits = np.ascontiguousarray(x).view(kind)
    return np.asarray(np.where(bits < 0, np.iinfo(kind).min - bits, bits))


def _distance(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    x, y = _ordered(a), _ordered(b)
    if a.dtype.itemsize == 8:
        apart = np.abs(x.astype(np.float64) - y.astype(np.float64))
        same_sign = (x < 0) == (y < 0)
        distance = np.where(same_sign, np.abs(x - y).astype(np.float64), apart)
    else:
        distance = np.abs(x.astype(np.float64) - y.astype(np.float64))
    finite = np.isfinite(a.astype(np.float64)) & np.isfinite(b.astype(np.float64))
    return np.where(finite, distance, np.nan)


def _distance_of_few_bits(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return the largest distance of an 8- or 16-bit dtype; infinities and NaN count as the numbers beyond the last."""
    x, y = _rank(a), _rank(b)
    return float((np.maximum(x, y) - np.minimum(x, y)).max())


def _rank(x: NDArray[Any]) -> NDArray[Any]:
    """Return unsigned integers in the order of the values, one apart for neighbours; in the dtype's own width, for speed."""
    kind = np.dtype(f"u{x.dtype.itemsize}")
    bits = x.view(kind)
    last = kind.type(8 * kind.itemsize - 1)
    middle = kind.type(1 << int(last))
    negative = kind.type(0) - (bits >> last)  # all ones where the sign is set
    # A choice per element would be slow: a two's complement negation of the magnitude where the sign is set is not.
    return np.asarray(middle + (((bits & kind.type(int(middle) - 1)) ^ negative) - negative))
