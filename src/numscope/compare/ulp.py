"""Distance in units in the last place: how many numbers of the dtype lie between two values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_INTEGER: dict[int, np.dtype[np.signedinteger[Any]]] = {size: np.dtype(f"i{size}") for size in (1, 2, 4, 8)}
_SAMPLE = 1 << 16
_CHUNK = 64 * 1024


def ulp_statistics(a: NDArray[Any], b: NDArray[Any], dtypes: tuple[str, str]) -> tuple[float, float, float] | None:
    """Return median, 99 % quantile and maximum of the distance; None where the dtypes differ or have no ulp.

    The quantiles of a tensor of more than 65,536 elements are those of an even sample; the maximum is of all.
    """
    if dtypes[0] != dtypes[1] or not dtypes[0].startswith(("float", "bfloat", "complex")) or a.dtype != b.dtype:
        return None
    if a.dtype.itemsize not in _INTEGER or not a.size:
        return None
    stride = max(1, a.size // _SAMPLE)
    sample = _distance(a[::stride], b[::stride])
    sample = sample[~np.isnan(sample)]
    if not sample.size:
        return None
    top = 0.0
    if stride == 1:
        top = float(sample.max())
    else:
        for begin in range(0, a.size, _CHUNK):
            top = max(top, _largest(a[begin : begin + _CHUNK], b[begin : begin + _CHUNK]))
    median, high = np.quantile(sample, [0.5, 0.99], method="nearest")
    return float(median), float(high), top


def _ordered(x: NDArray[Any]) -> NDArray[Any]:
    """Return integers in the order of the values, one apart for neighbours; both zeros are 0."""
    kind = _INTEGER[x.dtype.itemsize]
    bits = np.ascontiguousarray(x).view(kind)
    return np.where(bits < 0, np.iinfo(kind).min - bits, bits)


def _largest(a: NDArray[Any], b: NDArray[Any]) -> float:
    x, y = _ordered(a), _ordered(b)
    if a.dtype.itemsize < 8:
        gap = np.abs(np.subtract(x, y, dtype=np.int64))
    else:
        gap = np.abs(x.astype(np.float64) - y.astype(np.float64))
    top = float(gap.max())
    # Only a chunk that holds a NaN or an infinity can have a distance as large as this.
    if top >= float(np.iinfo(_INTEGER[a.dtype.itemsize]).max) * 0.4:
        distance = _distance(a, b)
        top = float(np.nanmax(distance)) if not np.isnan(distance).all() else 0.0
    return top


def _distance(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    x, y = _ordered(a).astype(np.float64), _ordered(b).astype(np.float64)
    if a.dtype.itemsize == 8:
        exact = np.abs(_ordered(a) - _ordered(b)).astype(np.float64)
        distance = np.where((x < 0) == (y < 0), exact, np.abs(x - y))
    else:
        distance = np.abs(x - y)
    finite = np.isfinite(a.astype(np.float64)) & np.isfinite(b.astype(np.float64))
    return np.where(finite, distance, np.nan)
