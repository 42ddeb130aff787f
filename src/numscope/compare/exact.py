"""Exact measures of two arrays, in chunks that stay in the cache, with float64 accumulators.

What each measure means for NaN, infinity, empty, 0-d, integer, bool, complex, fp8 and mixed dtypes is documented in
docs/reference/measures.md. In short: an element that is the same non-finite value on both sides is left out; one that
is non-finite on one side alone, or differently, makes the errors infinite; complex numbers count as two real ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numscope.compare.structure import Spread, index_text
from numscope.compare.ulp import Ulps

CHUNK = 32 * 1024  # elements: the work of one chunk stays in a core's second cache

# torch.testing.assert_close's own tolerances: rtol, atol.
_TOLERANCE = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}


@dataclass(frozen=True)
class Exact:
    """The measures of one pair; None where there is no such number."""

    relative_l2: float | None
    euclid: float | None
    rmse: float | None
    cosine: float | None
    mape: float | None
    mape_excluded: int
    max_abs_err: float | None
    max_rel_err: float | None
    bias: float | None
    within_0_1_percent: float | None
    within_0_5_percent: float | None
    mismatch_share: float | None
    ulp_median: float | None
    ulp_p99: float | None
    ulp_max: float | None
    target_std: float | None
    reference_std: float | None
    structure: str | None
    first_index: str | None
    worst_index: str | None
    correlation: float | None  # of the error with the reference: ±1 is a wrong scale, rounding is near 0


def measure_arrays(target: NDArray[Any], reference: NDArray[Any], dtypes: tuple[str, str]) -> Exact:
    """Return the exact measures of two arrays of the same number of elements."""
    with np.errstate(all="ignore"):  # infinities and NaN are ordinary values here
        return _measure(target, reference, dtypes)


def _measure(target: NDArray[Any], reference: NDArray[Any], dtypes: tuple[str, str]) -> Exact:
    shape = target.shape
    a, b = _flat(target), _flat(reference)
    if not a.size:
        return _empty()
    ulps = Ulps(a, b, dtypes)
    spread = Spread(shape, a.size)
    total = _Totals(max(_tolerance(dtypes[0]), _tolerance(dtypes[1])), spread, ulps)
    length = spread.chunk(CHUNK)
    work = _Work(a.dtype, b.dtype, min(length, a.size))
    for begin in range(0, a.size, length):
        total.add(work, a[begin : begin + length], b[begin : begin + length], begin)
    return total.result(shape, parts=2 if np.iscomplexobj(target) else 1)


def _fits_float32(dtype: np.dtype[Any]) -> bool:
    """Return whether float32 holds every value of the dtype."""
    return dtype == np.float32 or dtype.itemsize < 4


class _Work:
    """Memory that every chunk uses again: fresh memory for each would cost more than the arithmetic."""

    def __init__(self, dtype_a: np.dtype[Any], dtype_b: np.dtype[Any], length: int) -> None:
        self.dtype = np.dtype(np.float32 if _fits_float32(dtype_a) and _fits_float32(dtype_b) else np.float64)
        self.read_a, self.read_b = _reader(dtype_a, self.dtype, length), _reader(dtype_b, self.dtype, length)
        self.d, self.size, self.rel = (np.empty(length, self.dtype) for _ in range(3))
        self.wide_b, self.wide_d = np.empty(length), np.empty(length)
        self.flag = np.empty(length, np.bool_)

    def wide(self, values: NDArray[Any], buffer: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return values as float64."""
        if values.dtype == np.float64:
            return values
        here = buffer[: len(values)]
        np.copyto(here, values)
        return here


def _reader(dtype: np.dtype[Any], work: np.dtype[Any], length: int) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Return what reads a chunk as the work's dtype; the small dtypes through their bits, which is many times faster."""
    if dtype == work:
        return lambda part: part
    buffer = np.empty(length, work)

    def convert(part: NDArray[Any]) -> NDArray[Any]:
        np.copyto(buffer[: len(part)], part, casting="unsafe")
        return buffer[: len(part)]

    if work == np.float32 and dtype.name == "bfloat16":
        bits = buffer.view(np.uint32)

        def shift(part: NDArray[Any]) -> NDArray[Any]:
            np.copyto(bits[: len(part)], part.view(np.uint16))
            np.left_shift(bits[: len(part)], 16, out=bits[: len(part)])
            return buffer[: len(part)]

        return shift
    if work == np.float32 and dtype.itemsize <= 2 and dtype.kind not in "iub" and length > 4096:
        unsigned = np.dtype(f"u{dtype.itemsize}")
        table = np.arange(1 << 8 * dtype.itemsize, dtype=unsigned).view(dtype).astype(np.float32)

        def look_up(part: NDArray[Any]) -> NDArray[Any]:
            return np.take(table, part.view(unsigned), out=buffer[: len(part)], mode="wrap")

        return look_up
    return convert


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(flat.real.dtype) if np.iscomplexobj(flat) else flat


def _tolerance(dtype: str) -> tuple[float, float]:
    return _TOLERANCE.get(dtype, (0.0, 0.0)) if not dtype.startswith("float8") else (0.125, 0.015625)


def _empty() -> Exact:
    nothing = dict.fromkeys(Exact.__dataclass_fields__)
    return Exact(**{**nothing, "relative_l2": 0.0, "mape_excluded": 0})  # type: ignore[arg-type]


class _Totals:
    """Sums over the chunks seen so far. With d = a - b small, Σa², Σab and Σa follow from those of b and d."""

    def __init__(self, tolerance: tuple[float, float], spread: Spread, ulps: Ulps) -> None:
        self.rtol, self.atol = tolerance
        self.spread, self.ulps = spread, ulps
        self.count = self.compared = self.unlike = 0
        self.aa = self.ab = self.bb = self.dd = self.db = 0.0
        self.sum_a = self.sum_b = self.sum_d = self.sum_rel = 0.0
        self.zeros = self.near1 = self.near5 = self.mismatch = 0
        self.max_abs = self.max_rel = 0.0
        self.worst = self.first = -1

    def add(self, work: _Work, part_a: NDArray[Any], part_b: NDArray[Any], begin: int) -> None:
        a, b = work.read_a(part_a), work.read_b(part_b)
        n = len(a)
        self.count += n
        self.compared += n
        wide_b = work.wide(b, work.wide_b)
        bb = float(np.dot(wide_b, wide_b))
        d = np.subtract(a, b, out=work.d[:n])
        wide_d = work.wide(d, work.wide_d)
        dd = float(np.dot(wide_d, wide_d))
        if not math.isfinite(bb + dd):
            a, b = self._without_nonfinite(a.astype(np.float64), b.astype(np.float64), begin)
            wide_b, d = b, a - b
            wide_d, bb, dd = d, float(np.dot(b, b)), float(np.dot(d, d))
        self.bb += bb
        sum_b = float(wide_b.sum())
        self.sum_b += sum_b
        if dd == 0.0 and not d.any():
            self.aa += bb
            self.ab += bb
            self.sum_a += sum_b
            self.zeros += n - int(np.count_nonzero(b))
            self.near1 += n
            self.near5 += n
            return
        self.dd += dd
        db, sum_d = float(np.dot(wide_d, wide_b)), float(wide_d.sum())
        self.db += db
        self.sum_d += sum_d
        if dd < 1e-2 * bb:
            self.aa += max(0.0, bb + 2 * db + dd)
            self.ab += bb + db
            self.sum_a += sum_b + sum_d
        else:
            wide_a = a.astype(np.float64)
            self.aa += float(np.dot(wide_a, wide_a))
            self.ab += float(np.dot(wide_a, wide_b))
            self.sum_a += float(wide_a.sum())
        if d.dtype == work.dtype:
            self._elementwise(work, np.abs(d, out=d), np.abs(b, out=work.size[:n]), begin)
        else:
            self._elementwise(_Work(d.dtype, d.dtype, n), np.abs(d), np.abs(b), begin)

    def _elementwise(self, work: _Work, d: NDArray[Any], size: NDArray[Any], begin: int) -> None:
        n = len(d)
        rel, flag = work.rel[:n], work.flag[:n]
        worst = int(d.argmax())
        top = float(d[worst])
        if top > self.max_abs:
            self.max_abs, self.worst = top, begin + worst
        if self.first < 0:
            self.first = begin + int((d > 0).argmax())
        if top > self.atol:
            np.multiply(size, self.rtol, out=rel)
            np.add(rel, self.atol, out=rel)
            self.mismatch += int(np.count_nonzero(np.greater(d, rel, out=flag)))
        if float(size.min()) == 0.0:
            self._at_zeros(d, size, begin)
        else:
            np.divide(d, size, out=rel)
            self._relative(rel, n)
            self.ulps.look(rel, begin)
        self.spread.add(d, begin)

    def _at_zeros(self, d: NDArray[Any], size: NDArray[Any], begin: int) -> None:
        there = size > 0
        zeros = len(size) - int(np.count_nonzero(there))
        right = int(np.count_nonzero(d[~there] == 0))
        self.zeros += zeros
        self.near1 += right
        self.near5 += right
        if right < zeros:
            self.max_rel = math.inf
        rel = np.full(len(d), np.inf, dtype=d.dtype)
        np.divide(d, size, out=rel, where=there)
        rel[~there & (d == 0)] = 0.0
        self._relative(rel[there], len(d) - zeros)
        self.ulps.look(rel, begin)

    def _relative(self, rel: NDArray[Any], n: int) -> None:
        if not n:
            return
        self.sum_rel += float(rel.sum(dtype=np.float64))
        top = float(rel.max())
        self.max_rel = max(self.max_rel, top)
        self.near5 += n if top <= 5e-3 else int(np.count_nonzero(rel <= 5e-3))
        self.near1 += n if top <= 1e-3 else int(np.count_nonzero(rel <= 1e-3))

    def _without_nonfinite(
        self, a: NDArray[np.float64], b: NDArray[np.float64], begin: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        finite = np.isfinite(a) & np.isfinite(b)
        unlike = ~finite & ~((a == b) | (np.isnan(a) & np.isnan(b)))
        if unlike.any():
            self.unlike += int(unlike.sum())
            place = begin + int(unlike.argmax())
            if not math.isinf(self.max_abs):
                self.worst = place
            self.max_abs = self.max_rel = math.inf
            self.first = place if self.first < 0 else self.first
            self.mismatch += int(unlike.sum())
            self.spread.add(unlike.astype(np.float64), begin)
        self.compared -= int((~finite).sum())
        # Left out: a zero on both sides, which the counts below take back.
        left_out = int((~finite).sum())
        self.zeros -= left_out
        self.near1 -= left_out
        self.near5 -= left_out
        # Finite values too large to square are possible in float64 alone; they stay, and overflow to infinity.
        return np.where(finite, a, 0.0), np.where(finite, b, 0.0)

    def result(self, shape: tuple[int, ...], parts: int) -> Exact:
        n, unlike = self.compared, bool(self.unlike)
        euclid = math.inf if unlike else math.sqrt(self.dd)
        norm = math.sqrt(self.bb)
        relative = 0.0 if euclid == 0 else (euclid / norm if norm > 0 and not unlike else math.inf)
        counted = n - self.zeros
        known = bool(n or unlike)
        median, high, most = self.ulps.result()
        return Exact(
            relative_l2=relative,
            euclid=euclid,
            rmse=(math.inf if unlike else math.sqrt(self.dd / n)) if known else None,
            cosine=_cosine(self.ab, self.aa, self.bb) if n else None,
            mape=(math.inf if unlike else self.sum_rel / counted) if counted > 0 else None,
            mape_excluded=self.zeros,
            max_abs_err=self.max_abs if known else None,
            max_rel_err=self.max_rel if known else None,
            bias=self.sum_d / n / math.sqrt(self.dd / n) if self.dd > 0 and n else None,
            within_0_1_percent=self.near1 / n if n else None,
            within_0_5_percent=self.near5 / n if n else None,
            mismatch_share=self.mismatch / self.count,
            ulp_median=median,
            ulp_p99=high,
            ulp_max=most,
            target_std=_std(self.aa, self.sum_a, n),
            reference_std=_std(self.bb, self.sum_b, n),
            structure=self.spread.name() if self.dd > 0 or unlike else None,
            first_index=index_text(self.first // parts, shape),
            worst_index=index_text(self.worst // parts, shape),
            correlation=_cosine(self.db, self.dd, self.bb) if self.dd > 0 and self.bb > 0 else None,
        )


def _cosine(ab: float, aa: float, bb: float) -> float | None:
    """Return Σab / (‖a‖‖b‖) clipped to [-1, 1]; 1 for two zero tensors, None where one alone is zero."""
    if aa == 0 and bb == 0:
        return 1.0
    if aa == 0 or bb == 0 or not math.isfinite(aa) or not math.isfinite(bb):
        return None
    return max(-1.0, min(1.0, ab / (math.sqrt(aa) * math.sqrt(bb))))


def _std(squares: float, total: float, n: int) -> float | None:
    return math.sqrt(max(0.0, squares / n - (total / n) ** 2)) if n else None
