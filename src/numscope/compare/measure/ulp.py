"""Distances in units in the last place: the number of values of the dtype between two elements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from numscope.core.dtypes import FLOATS, AnyArray

Integers = NDArray[np.integer]
_SIZES = (1, 2, 4, 8)  # bytes of a dtype whose bits numpy has an integer for
_UNSIGNED = "float8_e8m0fnu"  # powers of two, without a sign
_SAMPLE = 1 << 14
_PIECE = 96 << 10  # bytes
_EVEN = 0.5  # up to this relative error, the spacing of numbers varies little enough to bound the distance

Statistics = tuple[float | None, float | None, float | None]


class _Part(NamedTuple):
    """Elements that may be further off than the furthest so far, and their largest relative error."""

    most: float
    begin: int
    end: int
    finite: bool


class Ulps:
    """Median, 99 % quantile and maximum of the distance; None where the dtypes differ or have no ulp.

    The quantiles of a tensor of more than 16,384 elements are those of an even sample; the maximum is of all: an element
    can only exceed the largest distance so far if its relative error is large enough, and only such elements are looked at.
    """

    def __init__(self, a: AnyArray, b: AnyArray, dtypes: tuple[str, str]) -> None:
        self.a, self.b = a, b
        dtype, other_dtype = dtypes
        form = FLOATS.get(dtype) if dtype == other_dtype else None
        self.has_ulps = form is not None and a.dtype == b.dtype and a.dtype.itemsize in _SIZES
        self.scale = 1 / form.unit_roundoff if form is not None else math.inf
        self.top = 0.0
        self.sample: Integers = np.zeros(0, np.int64)
        self.later: list[_Part] = []
        if self.has_ulps:
            stride = -(-a.size // _SAMPLE)
            self.sample = _distance(np.ascontiguousarray(a[::stride]), np.ascontiguousarray(b[::stride]))
            self.top = float(self.sample.max()) if self.sample.size else 0.0

    def look(
        self, begin: int, relative: NDArray[np.floating], most: float, finite: bool, flag: NDArray[np.bool_]
    ) -> None:
        """Look at the elements from `begin` on if their relative errors, `most` at most, allow a larger distance.

        `finite` says that all of them are finite; `flag` is a buffer.
        """
        if not self.has_ulps or self._bound(most) <= self.top:
            return
        part = _Part(most, begin, begin + len(relative), finite)
        if most <= _EVEN:  # another part may show that this one need not be looked at
            self.later.append(part)
            return
        far = np.greater(relative, min(self.top / self.scale, _EVEN), out=flag)
        if np.count_nonzero(far) > len(far) // 64:
            self._look(part)
        else:
            indices = begin + np.flatnonzero(far)
            self.top = max(self.top, _furthest(self.a[indices], self.b[indices]))

    def _bound(self, relative: float) -> float:
        """Return the largest distance that an element of this relative error can have."""
        return math.floor(relative * self.scale * (1 + 1e-6)) if relative <= _EVEN else math.inf

    def _look(self, part: _Part) -> None:
        a, b = self.a[part.begin : part.end], self.b[part.begin : part.end]
        for piece in pieces(a):
            x, y = a[piece], b[piece]
            self.top = max(self.top, _furthest(x, y) if part.finite else float(_distance(x, y).max(initial=0)))

    def result(self) -> Statistics:
        """Return median, 99 % quantile and maximum."""
        if not self.has_ulps or not self.sample.size:
            return None, None, None
        for part in sorted(self.later, reverse=True):
            if self._bound(part.most) > self.top:
                self._look(part)
        places = [round(share * (self.sample.size - 1)) for share in (0.5, 0.99)]
        median, high = np.partition(self.sample, places)[places].tolist()
        return float(median), float(high), self.top


def ordered(x: AnyArray) -> Integers:
    """Map floating-point numbers to integers in the same order, consecutive for neighbours; both zeros are 0."""
    kind = np.dtype(f"i{x.dtype.itemsize}")
    bits = np.ascontiguousarray(x).view(kind)
    if x.dtype.name == _UNSIGNED:
        return np.asarray(bits.view(np.uint8), np.int16)
    sign = bits >> (8 * x.dtype.itemsize - 1)  # all ones for a negative number, else 0
    return np.asarray(((bits & np.iinfo(kind).max) ^ sign) - sign)


def _distance(a: AnyArray, b: AnyArray) -> Integers:
    """Return the distances of the elements that are finite on both sides."""
    both = is_finite(a) & is_finite(b)
    if not both.all():
        a, b = a[both], b[both]
    x, y = ordered(a), ordered(b)
    return np.asarray((np.maximum(x, y) - np.minimum(x, y)).view(f"u{x.dtype.itemsize}"))


def pieces(array: AnyArray) -> Iterator[slice]:
    """Yield slices that need only small temporary arrays: the memory of large ones comes from the system each time."""
    step = _PIECE // array.itemsize
    return (slice(begin, begin + step) for begin in range(0, len(array), step))


def nonfinite(a: AnyArray, b: AnyArray) -> NDArray[np.intp]:
    """Return the indices of the elements that are not finite on one side or both."""
    indices = [np.flatnonzero(~(is_finite(a[piece]) & is_finite(b[piece]))) + piece.start for piece in pieces(a)]
    return np.concatenate(indices)


def is_finite(x: AnyArray) -> NDArray[np.bool_]:
    """Tell for each element whether it is finite; dtypes of 16 bits by their exponent, because numpy is slow for them."""
    exponent = {"bfloat16": 0x7F80, "float16": 0x7C00}.get(x.dtype.name)
    if exponent is not None:
        return np.asarray((x.view(np.uint16) & exponent) != exponent)
    return np.asarray(np.isfinite(x if x.dtype.kind == "f" else x.astype(np.float32)))


def _furthest(a: AnyArray, b: AnyArray) -> float:
    """Return the largest distance of elements that are all finite."""
    if a.dtype.name == _UNSIGNED:
        return float(_distance(a, b).max(initial=0))
    kind = np.dtype(f"i{a.dtype.itemsize}")
    x, y = a.view(kind), b.view(kind)
    across = np.bitwise_xor(x, y)
    apart = np.subtract(x, y)
    if int(across.min()) >= 0:
        return float(max(int(apart.max()), -int(apart.min())))
    # The distance of numbers of different signs is the sum of their magnitudes. Bit operations select it for each element,
    # because np.where is slow.
    np.right_shift(across, 8 * kind.itemsize - 1, out=across)  # all ones where the signs differ, else 0
    sizes = np.add(x, y)
    np.bitwise_xor(sizes, np.iinfo(kind).min, out=sizes)
    np.bitwise_and(sizes, across, out=sizes)
    np.bitwise_and(apart, np.invert(across, out=across), out=apart)
    return float(max(int(apart.max()), -int(apart.min()), int(sizes.view(f"u{kind.itemsize}").max())))
