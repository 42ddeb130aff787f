"""Exact measures of two arrays, in chunks that stay in the cache, with float64 accumulators.

What each measure means for NaN, infinity, empty, 0-d, integer, bool, complex, fp8 and mixed dtypes is documented in
docs/reference/measures.md. In short: an element that is the same non-finite value on both sides is left out; one that
is non-finite on one side alone, or differently, makes the errors infinite; complex numbers count as two real ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numscope.compare.structure import Spread, index_text
from numscope.compare.ulp import ulp_statistics

CHUNK = 32 * 1024

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
    shape = target.shape
    a, b = _flat(target), _flat(reference)
    if not a.size:
        return _empty()
    total = _Totals(max(_tolerance(dtypes[0]), _tolerance(dtypes[1])))
    spread = Spread(shape, a.size)
    for begin in range(0, a.size, CHUNK):
        part_a, part_b = a[begin : begin + CHUNK], b[begin : begin + CHUNK]
        total.add(part_a, part_b, begin, spread)
    return total.result(shape, spread, ulp_statistics(a, b, dtypes))


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(flat.real.dtype) if np.iscomplexobj(flat) else flat


def _tolerance(dtype: str) -> tuple[float, float]:
    return _TOLERANCE.get(dtype, (0.0, 0.0)) if not dtype.startswith("float8") else (0.125, 0.015625)


def _empty() -> Exact:
    nothing = dict.fromkeys(Exact.__dataclass_fields__)
    return Exact(**{**nothing, "relative_l2": 0.0, "mape_excluded": 0})  # type: ignore[arg-type]


class _Totals:
    """Sums over the chunks seen so far."""

    def __init__(self, tolerance: tuple[float, float]) -> None:
        self.rtol, self.atol = tolerance
        self.count = self.compared = self.unlike = 0
        self.aa = self.bb = self.ab = self.dd = self.db = 0.0
        self.sum_a = self.sum_b = self.sum_rel = 0.0
        self.zeros = self.near1 = self.near5 = self.mismatch = 0
        self.max_abs = self.max_rel = 0.0
        self.worst = -1
        self.first = -1
        self._rel = np.empty(CHUNK)
        self._d = np.empty(CHUNK)
        self._size = np.empty(CHUNK)
        self._flag = np.empty(CHUNK, np.bool_)

    def add(self, part_a: NDArray[Any], part_b: NDArray[Any], begin: int, spread: Spread) -> None:
        n = len(part_a)
        a, b = part_a.astype(np.float64), part_b.astype(np.float64)
        self.count += n
        aa, bb = float(np.dot(a, a)), float(np.dot(b, b))
        if not (math.isfinite(aa) and math.isfinite(bb)):
            a, b = self._without_nonfinite(a, b, begin, spread)
            aa, bb = float(np.dot(a, a)), float(np.dot(b, b))
        d, size, rel, flag = self._d[:n], self._size[:n], self._rel[:n], self._flag[:n]
        np.subtract(a, b, out=d)
        dd = float(np.dot(d, d))
        self.aa, self.bb = self.aa + aa, self.bb + bb
        self.sum_a += float(a.sum())
        self.sum_b += float(b.sum())
        self.compared += n
        if dd == 0.0 and not d.any():
            zeros = n - int(np.count_nonzero(b))
            self.ab += bb
            self.zeros += zeros
            self.near1 += n
            self.near5 += n
            return
        self.ab += float(np.dot(a, b))
        self.dd += dd
        self.db += float(np.dot(d, b))
        np.abs(d, out=d)
        np.abs(b, out=size)
        self._extremes(d, begin)
        np.multiply(size, self.rtol, out=rel)
        rel += self.atol
        self.mismatch += int(np.count_nonzero(np.greater(d, rel, out=flag)))
        zeros = n - int(np.count_nonzero(size))
        if zeros:
            there = size > 0
            rel = d[there] / size[there]
            right_at_zero = int(np.count_nonzero(d[~there] == 0))
            self.near1 += right_at_zero
            self.near5 += right_at_zero
            if right_at_zero < zeros:
                self.max_rel = math.inf
            flag = self._flag[: len(rel)]
        else:
            np.divide(d, size, out=rel)
        self.zeros += zeros
        if len(rel):
            self.sum_rel += float(rel.sum())
            self.max_rel = max(self.max_rel, float(rel.max()))
            self.near1 += int(np.count_nonzero(np.less_equal(rel, 1e-3, out=flag)))
            self.near5 += int(np.count_nonzero(np.less_equal(rel, 5e-3, out=flag)))
        spread.add(d, begin)

    def _extremes(self, d: NDArray[np.float64], begin: int) -> None:
        worst = int(d.argmax())
        if float(d[worst]) > self.max_abs:
            self.max_abs, self.worst = float(d[worst]), begin + worst
        if self.first < 0:
            self.first = begin + int((d > 0).argmax())

    def _without_nonfinite(
        self, a: NDArray[np.float64], b: NDArray[np.float64], begin: int, spread: Spread
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        finite = np.isfinite(a) & np.isfinite(b)
        unlike = ~finite & ~((a == b) | (np.isnan(a) & np.isnan(b)))
        if unlike.any():
            self.unlike += int(unlike.sum())
            place = begin + int(unlike.argmax())
            self.max_abs = self.max_rel = math.inf
            self.worst = place if self.worst < 0 or not math.isinf(self.max_abs) else self.worst
            self.worst = place
            self.first = place if self.first < 0 else self.first
            self.mismatch += int(unlike.sum())
            spread.add(unlike.astype(np.float64), begin)
        self.compared -= int((~finite).sum())
        # Finite values too large to square are possible in float64 alone; they stay, and overflow to infinity.
        return np.where(finite, a, 0.0), np.where(finite, b, 0.0)

    def result(self, shape: tuple[int, ...], spread: Spread, ulp: tuple[float, float, float] | None) -> Exact:
        n = self.compared
        euclid = math.inf if self.unlike else math.sqrt(self.dd)
        rmse = (math.inf if self.unlike else math.sqrt(self.dd / n)) if n else (math.inf if self.unlike else None)
        norm_b = math.sqrt(self.bb)
        if self.unlike:
            relative: float | None = math.inf
        else:
            relative = 0.0 if euclid == 0 else (euclid / norm_b if norm_b > 0 else math.inf)
        counted = self.count - self.zeros - (self.count - self.compared)
        ulp = ulp or (None, None, None)  # type: ignore[assignment]
        differ = self.dd > 0 or self.unlike
        return Exact(
            relative_l2=relative,
            euclid=euclid,
            rmse=rmse,
            cosine=_cosine(self.ab, self.aa, self.bb) if n else None,
            mape=(math.inf if self.unlike else self.sum_rel / counted) if counted > 0 else None,
            mape_excluded=self.zeros,
            max_abs_err=self.max_abs if (n or self.unlike) else None,
            max_rel_err=self.max_rel if (n or self.unlike) else None,
            bias=None if self.dd == 0 or not n else (self.sum_a - self.sum_b) / n / math.sqrt(self.dd / n),
            within_0_1_percent=self.near1 / self.count,
            within_0_5_percent=self.near5 / self.count,
            mismatch_share=self.mismatch / self.count,
            ulp_median=ulp[0],  # type: ignore[index]
            ulp_p99=ulp[1],  # type: ignore[index]
            ulp_max=ulp[2],  # type: ignore[index]
            target_std=_std(self.aa, self.sum_a, n),
            reference_std=_std(self.bb, self.sum_b, n),
            structure=spread.name() if differ else None,
            first_index=index_text(self.first, shape),
            worst_index=index_text(self.worst, shape),
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
