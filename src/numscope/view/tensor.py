"""Pictures of two arrays side by side: histograms, a plane of any two dimensions, the worst elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numscope.compare.measure.ulp import ordered
from numscope.core.dtypes import AnyArray
from numscope.core.errors import SettingsError
from numscope.report.pages.frames import Column, encode

Floats = NDArray[np.float64]
BINS = 96
PLANE = 320  # pixels of a heatmap's side, at most


@dataclass(frozen=True)
class TensorPair:
    """The data of one slot on both sides; either may be missing."""

    target: AnyArray | None
    reference: AnyArray | None
    sampled: bool = False  # the arrays are samples of the tensors, as one row

    @property
    def shape(self) -> tuple[int, ...]:
        some = self.target if self.target is not None else self.reference
        return () if some is None else tuple(int(n) for n in some.shape)

    @property
    def comparable(self) -> bool:
        """Whether each element of one corresponds to an element of the other."""
        return self.target is not None and self.reference is not None and self.target.shape == self.reference.shape

    def kept(self) -> dict[str, bool]:
        """Return which sides have data."""
        return {"target": self.target is not None, "reference": self.reference is not None, "sampled": self.sampled}


def real(array: AnyArray) -> Floats:
    """Return the array as float64; of a complex one the magnitude."""
    if array.dtype.kind == "c":
        array = np.abs(array)
    result: Floats = np.asarray(array).astype(np.float64)
    return result


def difference(target: AnyArray, reference: AnyArray) -> Floats:
    """Return target − reference; 0 where both are the same infinity or both NaN."""
    a, b = real(target), real(reference)
    with np.errstate(invalid="ignore"):
        gap = a - b
    result: Floats = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, gap)
    return result


def ulps(target: AnyArray, reference: AnyArray) -> Floats:
    """Return the distances in representable numbers, NaN where that is not defined."""
    if target.dtype != reference.dtype or target.dtype.kind in "biucO" or target.dtype.itemsize > 8:
        return np.full(target.shape, np.nan)
    a, b = ordered(target).astype(np.int64), ordered(reference).astype(np.int64)
    high, low = np.maximum(a, b).view(np.uint64), np.minimum(a, b).view(np.uint64)
    gap = (high - low).astype(np.float64)  # modulo 2**64, so that no difference overflows
    result: Floats = np.where(np.isnan(real(target)) | np.isnan(real(reference)), np.nan, gap)
    return result


def histogram(pair: TensorPair, scale: str) -> dict[str, object]:
    """Return counts of both sides over common bins, and of |difference| over its own, linear or by power of ten."""
    if scale not in ("linear", "log"):
        raise SettingsError(f"scale is linear or log, not {scale!r}")
    sides = {"target": pair.target, "reference": pair.reference}
    values = {name: _scaled(array, scale) for name, array in sides.items() if array is not None}
    differences = None
    if pair.comparable:
        assert pair.target is not None
        assert pair.reference is not None
        gap = np.abs(difference(pair.target, pair.reference)).ravel()
        finite = gap[np.isfinite(gap) & (gap > 0)]
        counts = {"equal": int((gap == 0).sum()), "non_finite": int((~np.isfinite(gap)).sum())}
        differences = {**_count({"difference": np.log10(finite)}), **counts}
    return {"scale": scale, "value": _count(values), "difference": differences}


def _scaled(array: AnyArray, scale: str) -> Floats:
    flat = real(array).ravel()
    flat = flat[np.isfinite(flat)]
    if scale == "log":
        flat = np.log10(np.abs(flat[flat != 0]))
    return flat


def _count(values: dict[str, Floats]) -> dict[str, list[float] | int]:
    kept = [array for array in values.values() if array.size]
    low = min((float(a.min()) for a in kept), default=0.0)
    high = max((float(a.max()) for a in kept), default=1.0)
    if not high > low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)
    counts = {name: np.histogram(array, edges)[0].tolist() for name, array in values.items()}
    return {"edges": edges.tolist(), **counts}


def plane(pair: TensorPair, what: str, rows: int, columns: int, fixed: Sequence[int]) -> bytes:
    """Return a frame with the picture of two dimensions, the others held at `fixed`."""
    cut = _cut(pair.shape, rows, columns, fixed)
    target = None if pair.target is None else _slice(pair.target, cut, rows, columns)
    reference = None if pair.reference is None else _slice(pair.reference, cut, rows, columns)
    if what == "target" and target is not None:
        picture = real(target)
    elif what == "reference" and reference is not None:
        picture = real(reference)
    elif what in ("difference", "relative", "ulp") and pair.comparable:
        assert target is not None
        assert reference is not None
        picture = ulps(target, reference) if what == "ulp" else difference(target, reference)
        if what == "relative":
            with np.errstate(divide="ignore", invalid="ignore"):
                picture = np.where(picture == 0, 0.0, picture / np.abs(real(reference)))
    else:
        raise SettingsError(f"there is no picture of {what!r}: the data of that side was not kept")
    small = _pool(picture)
    height, width = small.shape
    finite = small[np.isfinite(small)]
    return encode(
        [Column("value", small.astype("f4").ravel())],
        {
            "height": height,
            "width": width,
            "full": list(picture.shape),
            "low": float(finite.min()) if finite.size else 0.0,
            "high": float(finite.max()) if finite.size else 0.0,
        },
    )


def _cut(shape: tuple[int, ...], rows: int, columns: int, fixed: Sequence[int]) -> tuple[int | slice, ...]:
    rank = len(shape)
    if rank >= 2 and (rows == columns or not (0 <= rows < rank and 0 <= columns < rank)):
        raise SettingsError(f"choose two different dimensions of {list(shape)}")
    cut: list[int | slice] = []
    for dim in range(rank):
        at = fixed[dim] if dim < len(fixed) else 0
        free = rank < 2 or dim in (rows, columns)
        cut.append(slice(None) if free else min(max(at, 0), shape[dim] - 1))
    return tuple(cut)


def _slice(array: AnyArray, cut: tuple[int | slice, ...], rows: int, columns: int) -> AnyArray:
    part: AnyArray = array[cut]
    if part.ndim < 2:
        return _fold(part)
    return part.T if rows > columns else part


def _fold(part: AnyArray) -> AnyArray:
    """Fold a long vector into a square picture, row by row; an incomplete last row is cut off."""
    flat = part.reshape(-1)
    if flat.size <= 4 * PLANE:
        return flat.reshape(1, -1)
    width = int(np.ceil(np.sqrt(flat.size)))
    return flat[: flat.size // width * width].reshape(-1, width)


def _pool(picture: Floats) -> Floats:
    """Shrink to at most PLANE a side, keeping the element of each block farthest from zero, so that a lone error shows."""
    for axis in (0, 1):
        size = picture.shape[axis]
        step = -(-size // PLANE)
        if step == 1:
            continue
        padding = [(0, 0), (0, 0)]
        padding[axis] = (0, -size % step)
        wide = np.pad(picture, padding, mode="edge")
        rows, columns = wide.shape
        blocks = wide.reshape(-1, step, columns) if axis == 0 else wide.reshape(rows, -1, step)
        inner = 1 if axis == 0 else 2
        rank = np.where(np.isnan(blocks), np.inf, np.abs(blocks))
        picture = np.take_along_axis(blocks, rank.argmax(axis=inner, keepdims=True), inner).squeeze(inner)
    return picture


def worst(pair: TensorPair, count: int = 50) -> list[dict[str, object]]:
    """Return the elements that differ most, the worst first; of one side alone, the non-finite and largest ones."""
    some = pair.target if pair.target is not None else pair.reference
    if some is None or not some.size:
        return []
    if pair.comparable:
        assert pair.target is not None
        assert pair.reference is not None
        gap = difference(pair.target, pair.reference).ravel()
    else:
        gap = real(some).ravel()
    rank = np.where(np.isnan(gap), np.inf, np.abs(gap))
    top = np.argpartition(-rank, min(count, rank.size - 1))[:count]
    top = top[np.argsort(-rank[top], kind="stable")]
    return elements(pair, top[rank[top] > 0])


def elements(pair: TensorPair, flat: NDArray[np.int64]) -> list[dict[str, object]]:
    """Return index and values of these elements."""
    indices = np.stack(np.unravel_index(flat, pair.shape), axis=1).tolist() if pair.shape else [[] for _ in flat]
    columns: dict[str, list[object]] = {"index": indices, "flat": flat.tolist()}
    if pair.target is not None:
        columns["target"] = real(pair.target.reshape(-1)[flat]).tolist()
    if pair.reference is not None and (pair.comparable or pair.target is None):
        columns["reference"] = real(pair.reference.reshape(-1)[flat]).tolist()
    if pair.comparable:
        assert pair.target is not None
        assert pair.reference is not None
        a, b = pair.target.reshape(-1)[flat], pair.reference.reshape(-1)[flat]
        gap = difference(a, b)
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(gap == 0, 0.0, np.abs(gap) / np.abs(real(b)))
        columns |= {"difference": gap.tolist(), "relative": relative.tolist(), "ulp": ulps(a, b).tolist()}
    return [dict(zip(columns, row)) for row in zip(*columns.values())]
