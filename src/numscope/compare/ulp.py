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
            stride = -(-a.size // _SAMPLE)
            self.sample = _distance(np.ascontiguousarray(a[::stride]), np.ascontiguousarray(b[::stride]))
            self.top = float(self.sample.max()) if self.sample.size else 0.0

    def look(self, relative: NDArray[Any], most: float, begin: int) -> None:
        """Look at the elements from `begin` on whose relative error, `most` at most, may be further off than any so far."""
        if not self.known:
            return
        end, size = begin + len(relative), self.a.dtype.itemsize
        many_digits = self.scale > 1024
        if many_digits and most * self.scale <= self.top:
            return
        far = relative > self.top / self.scale if many_digits else None
        if far is not None and (size > 2 or np.count_nonzero(far) < len(far) // 64):
            places = begin + np.flatnonzero(far)
            found = float(_distance(self.a[places], self.b[places]).max(initial=0))
        elif size == 2:  # few bits: look at all of them
            found = _furthest_of_16_bits(self.a[begin:end], self.b[begin:end])
        else:
            found = _furthest_of_8_bits(self.a[begin:end], self.b[begin:end])
        self.top = max(self.top, found)

    def result(self) -> Statistics:
        """Return median, 99 % quantile and maximum."""
        if not self.known or not self.sample.size:
            return None, None, None
        places = [round(share * (self.sample.size - 1)) for share in (0.5, 0.99)]
        if self.sample.dtype.kind == "i" and int(self.sample.max()) < 1 << 16:
            below = np.cumsum(np.bincount(self.sample))
            median, high = np.searchsorted(below, places, side="right").tolist()
        else:
            median, high = np.partition(self.sample, places)[places].tolist()
        return float(median), float(high), self.top


def _ordered(x: NDArray[Any]) -> NDArray[Any]:
    """Return integers in the order of the values, one apart for neighbours; both zeros are 0."""
    kind = _INTEGER[x.dtype.itemsize]
    bits = np.ascontiguousarray(x).view(kind)
    return np.asarray(np.where(bits < 0, np.iinfo(kind).min - bits, bits))


def _distance(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return the distances of the elements that are finite on both sides."""
    finite = _finite(a) & _finite(b)
    if not finite.all():
        a, b = a[finite], b[finite]
    x, y = _ordered(a), _ordered(b)
    if a.dtype.itemsize < 8:
        return np.asarray(np.abs(x.astype(np.int64) - y))
    apart = np.abs(x.astype(np.float64) - y.astype(np.float64))
    same_sign = (x < 0) == (y < 0)
    return np.where(same_sign, np.abs(x - y).astype(np.float64), apart)


def _finite(x: NDArray[Any]) -> NDArray[np.bool_]:
    if x.dtype.name == "bfloat16":
        return np.asarray((x.view(np.uint16) & 0x7F80) != 0x7F80)
    return np.asarray(np.isfinite(x if x.dtype.kind == "f" else x.astype(np.float32)))


def _furthest_of_16_bits(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return the largest distance; infinities and NaN count as the numbers beyond the last."""
    x, y = a.view(np.int16), b.view(np.int16)
    apart = np.bitwise_xor(x, y)
    across = np.flatnonzero(apart < 0) if int(apart.min()) < 0 else ()  # on either side of zero
    np.subtract(x, y, out=apart)
    if not len(across):
        return float(max(int(apart.max()), -int(apart.min())))
    apart[across] = 0
    sizes = (x[across] & 0x7FFF).astype(np.int32) + (y[across] & 0x7FFF)
    return float(max(int(apart.max()), -int(apart.min()), int(sizes.max())))


def _furthest_of_8_bits(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return the largest distance; infinities and NaN count as the numbers beyond the last."""
    x, y = (_ordered(part).astype(np.int16) for part in (a, b))
    return float(np.abs(x - y).max())
