"""The definition of the fingerprint, in plain numpy: slow, short, and right; every fast form must agree with it.

    >>> one = fingerprint(np.array([[1.0, -2.0], [np.nan, 0.0]], dtype=np.float32))
    >>> one.nan[0], one.zero[0], one.min[0], one.max[0], one.l2[0]
    (1, 1, -2.0, 1.0, 2.23606797749979)

The content of a tensor is its elements in logical row-major order; a complex element counts as two, real part first, but
for `nan` and `zero`: it is NaN where one of its parts is, and zero where both are.
See docs/reference/fingerprint.md for the reasons and the error analysis.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from numscope.fingerprint import constants
from numscope.fingerprint.columns import Fingerprints

Array = NDArray[np.generic]


def fingerprint(array: Array) -> Fingerprints:
    """Return the fingerprint of one array as one row."""
    value = values(array)
    whole = array if array.dtype.kind == "c" else value
    finite = value[np.isfinite(value)]
    lowest, highest, mean, l2 = _moments(finite)
    with np.errstate(invalid="ignore"):
        zero, nan = np.count_nonzero(whole == 0), np.count_nonzero(np.isnan(whole))
    return Fingerprints(
        elements=np.array([array.size], np.int64),
        nan=np.array([nan], np.int64),
        posinf=np.array([np.count_nonzero(np.isposinf(value))], np.int64),
        neginf=np.array([np.count_nonzero(np.isneginf(value))], np.int64),
        zero=np.array([zero], np.int64),
        min=np.array([lowest]),
        max=np.array([highest]),
        mean=np.array([mean]),
        l2=np.array([l2]),
        hash=np.array([hash64(array)], np.uint64),
        sketch=sketch(array)[None, :],
    )


def values(array: Array) -> NDArray[np.float64]:
    """Return the content as float64 numbers, from which statistics and sketch are computed."""
    flat = content(array)
    with np.errstate(invalid="ignore"):  # a signalling NaN is as good a NaN as any
        return flat.astype(np.float64)


def content(array: Array) -> Array:
    """Return the content as a flat, contiguous, little-endian array of real elements."""
    numeric = array.dtype.kind in "biufcV" and array.dtype.type is not np.void  # ml_dtypes say V, or f
    if not numeric or array.dtype.type in (np.longdouble, np.clongdouble):
        raise TypeError(f"no fingerprint is defined for numpy dtype {array.dtype}")
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.byteorder == ">":
        flat = flat.astype(flat.dtype.newbyteorder("<"))
    if flat.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    return flat


def hash64(array: Array) -> int:
    """Return the sum of word times factor, mod 2**64, over the content's bytes as signed 32-bit words."""
    raw = content(array).view(np.uint8)
    padded = np.zeros(-(-raw.size // 4) * 4, np.uint8)
    padded[: raw.size] = raw
    word = padded.view("<i4").astype(np.int64)
    index = np.arange(word.size)
    with np.errstate(over="ignore"):
        factor = constants.factors()[index % constants.SPAN] * constants.span_factors(index // constants.SPAN)
        return int(np.sum(factor * word)) % 2**64


def sketch(array: Array, offset: int = 0, indices: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """Return the sketch: the signed sums of the elements, by their index modulo 61, in 64 numbers.

    `offset` or `indices` (one per element, same shape) give the elements' indices in a larger tensor of which this is a
    part: the sketches of the parts then add up to the sketch of the whole.
    """
    value = values(array)
    index = np.arange(offset, offset + array.size) if indices is None else np.ascontiguousarray(indices).reshape(-1)
    if index.size != array.size:
        raise ValueError(f"{array.size} elements, but {index.size} indices")
    if value.size == 2 * index.size and array.dtype.kind == "c":
        index = (2 * index[:, None] + np.arange(2)).reshape(-1)
    summand = np.where(np.isfinite(value), value, 0.0) * constants.signs(index)
    return np.bincount(index % constants.BUCKETS, summand, constants.SKETCH).astype(np.float64)


def _moments(finite: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Return min, max, mean and l2; scaled by a power of two, which is exact, so that no square over- or underflows."""
    if finite.size == 0:
        return np.nan, np.nan, np.nan, 0.0
    lowest, highest = float(finite.min()), float(finite.max())
    exponent = int(np.frexp(max(-lowest, highest))[1])
    scaled = np.ldexp(finite, -exponent)
    mean = float(np.ldexp(scaled.sum() / finite.size, exponent))
    with np.errstate(over="ignore"):  # float64 elements near the largest: the l2 itself may be beyond it
        return lowest, highest, mean, float(np.ldexp(np.sqrt(np.sum(scaled * scaled)), exponent))
