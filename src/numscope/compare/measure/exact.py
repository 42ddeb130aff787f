"""Exact measures of two arrays, in chunks that stay in the cache (chunks.py), with float64 accumulators.

The meaning of each measure for NaN, infinity, empty, 0-d, integer, bool, complex, fp8 and mixed dtypes is documented in
docs/reference/measures.md. In short: an element that is the same non-finite value on both sides is left out; one that
is non-finite on one side alone, or differently, makes the errors infinite; complex numbers count as two real ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numscope.compare.measure.chunks import CHUNK, Reals, Work, work_for
from numscope.compare.measure.error_structure import Spread, index_text
from numscope.compare.measure.native import Pair, pair
from numscope.compare.measure.ulp import Ulps, nonfinite
from numscope.core.dtypes import AnyArray

__all__ = ["CHUNK", "Exact", "measure_arrays"]

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
    """The measures of one pair; None where a measure is not defined."""

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
    correlation: float | None  # of the error with the reference: ±1 for a wrong scale, near 0 for rounding


def measure_arrays(target: AnyArray, reference: AnyArray, dtypes: tuple[str, str]) -> Exact:
    """Return the exact measures of two arrays of the same number of elements."""
    if np.iscomplexobj(target) != np.iscomplexobj(reference):  # a real number has the imaginary part 0
        target, reference = _complex(target), _complex(reference)
    with np.errstate(all="ignore"):  # infinities and NaN are ordinary values here
        total = _measure(target, reference, dtypes)
        if total is not None and total.delicate():
            total = _measure(target, reference, dtypes, precise=True)
        return _empty() if total is None else total.result(target.shape, parts=2 if np.iscomplexobj(target) else 1)


def _measure(target: AnyArray, reference: AnyArray, dtypes: tuple[str, str], precise: bool = False) -> _Totals | None:
    a, b = _flat(target), _flat(reference)
    if not a.size:
        return None
    spread = Spread(target.shape, a.size)
    length = spread.chunk(CHUNK)
    work = work_for(a.dtype, b.dtype, precise)
    tolerance = max(map(_tolerance, dtypes))
    total = _Totals(tolerance, spread, Ulps(a, b, dtypes), work, pair(a, b, tolerance, work.d))
    for begin in range(0, a.size, length):
        part_a, part_b = a[begin : begin + length], b[begin : begin + length]
        if not total.add_compiled(begin, len(part_a)):
            total.add(part_a, part_b, begin)
    return total


def _flat(array: AnyArray) -> AnyArray:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(flat.real.dtype) if np.iscomplexobj(flat) else flat


def _complex(array: AnyArray) -> AnyArray:
    if np.iscomplexobj(array):
        return array
    return array.astype(np.complex64 if array.dtype.itemsize < 8 else np.complex128)


def _tolerance(dtype: str) -> tuple[float, float]:
    return _TOLERANCE.get(dtype, (0.0, 0.0)) if not dtype.startswith("float8") else (0.125, 0.015625)


def _empty() -> Exact:
    nothing = dict.fromkeys(Exact.__dataclass_fields__)
    return Exact(**{**nothing, "relative_l2": 0.0, "mape_excluded": 0})  # type: ignore[arg-type]


class _Totals:
    """Sums over the chunks so far. Σa², Σab and Σa are computed from the sums of b and d = a - b, unless those cancel."""

    def __init__(
        self, tolerance: tuple[float, float], spread: Spread, ulps: Ulps, work: Work, compiled: Pair | None
    ) -> None:
        self.rtol, self.atol = tolerance
        self.spread, self.ulps, self.work, self.compiled = spread, ulps, work, compiled
        self.short = False  # some sums are in float32
        self.count = self.compared = self.unlike = 0
        self.aa = self.ab = self.bb = self.dd = self.db = 0.0
        self.sum_a = self.sum_b = self.sum_d = self.sum_rel = 0.0
        self.zeros = self.near1 = self.near5 = self.mismatch = 0
        self.max_abs = self.max_rel = 0.0
        self.worst = self.first = -1

    def add_compiled(self, begin: int, n: int) -> bool:
        """Add `n` elements from `begin` on by the compiled function; False where numpy has to."""
        chunk = self.compiled and self.compiled.measure(begin, n, int(self.ulps.top))
        if not chunk:
            return False
        self.count += n
        self.compared += n
        for name in ("aa", "ab", "bb", "dd", "db", "zeros", "near1", "near5"):
            setattr(self, name, getattr(self, name) + getattr(chunk, name))
        self.sum_a += chunk.a
        self.sum_b += chunk.b
        self.sum_d += chunk.d
        self.sum_rel += chunk.relative
        self.mismatch += chunk.mismatches
        self.max_rel = max(self.max_rel, chunk.most_relative)
        self.ulps.top = max(self.ulps.top, float(chunk.ulps))
        if chunk.most > self.max_abs:
            self.max_abs, self.worst = chunk.most, begin + chunk.worst
        if chunk.most > 0:
            self.first = begin + chunk.first if self.first < 0 else self.first
            self.spread.add(self.work.d[:n], begin, self.work.flag[:n])
        return True

    def add(self, part_a: AnyArray, part_b: AnyArray, begin: int) -> None:
        """Add the elements from `begin` on."""
        work, n = self.work, len(part_a)
        self.short = work.short
        first, b = work.read(part_a, part_b)
        self.count += n
        self.compared += n
        d = np.subtract(first, b, out=work.d[:n])
        a: Reals | None = None  # not `first`: d may have overwritten it
        sums = work.sums(b, d)
        finite = True
        if not math.isfinite(sums.bb + sums.dd) or work.doubtful(sums):
            indices = nonfinite(part_a, part_b)
            if len(indices):
                finite = False
                self._leave_out(part_a, part_b, indices, begin)
                a, b = work.read_without(part_a, part_b, indices)
                d = np.subtract(a, b, out=work.d[:n])
                sums = work.sums(b, d)
            if work.dtype != np.float64 and not math.isfinite(sums.bb + sums.dd):  # too large to be squared in float32
                a, b = (work.again(part_a) if a is None else a).astype(np.float64), b.astype(np.float64)
                d = a - b
                sums = work.sums(b, d)
        self.bb += sums.bb
        self.sum_b += sums.b
        if sums.dd == 0.0 and not d.any():
            self.aa += sums.bb
            self.ab += sums.bb
            self.sum_a += sums.b
            self.zeros += int(np.count_nonzero(np.equal(b, 0, out=work.flag[:n])))
            self.near1 += n
            self.near5 += n
            return
        self.dd += sums.dd
        self.db += sums.db
        self.sum_d += sums.d
        squares = sums.bb + 2 * sums.db + sums.dd
        if squares > 0.1 * (sums.bb + sums.dd):
            self.aa += squares
            self.ab += sums.bb + sums.db
            self.sum_a += sums.b + sums.d
        else:
            own = work.sums(work.again(part_a) if a is None else a, b)
            self.aa += own.bb
            self.ab += own.db
            self.sum_a += own.b
        self._elementwise(work if d.dtype == work.dtype else work_for(d.dtype, d.dtype), d, b, begin, finite)

    def delicate(self) -> bool:
        """Tell whether a standard deviation is so small beside its mean that it takes sums in float64 throughout."""
        if not self.short or not self.compared:
            return False
        sides = ((self.bb, self.sum_b), (self.aa, self.sum_a))
        return any(total**2 > 0.99 * squares * self.compared for squares, total in sides)

    def _elementwise(self, work: Work, d: Reals, b: Reals, begin: int, finite: bool) -> None:
        """Add the measures that need every element's own error."""
        n = len(d)
        rel, flag = work.rel[:n], work.flag[:n]
        np.abs(d, out=d)
        worst = int(d.view(work.integer).argmax())  # non-negative numbers have the order of their bits
        top = float(d[worst])
        if top > self.max_abs:
            self.max_abs, self.worst = top, begin + worst
        if not 0 <= self.first < begin:  # none so far, or a non-finite one of this chunk
            first = begin + int((d > 0).argmax())
            self.first = first if self.first < 0 else min(first, self.first)
        size = np.abs(b, out=work.size[:n])
        np.divide(d, size, out=rel)
        zeros, total = 0, math.nan if self.zeros else work.total(rel)  # a tensor with zeros in earlier chunks has more
        if not math.isfinite(total):
            zeros, total = _at_zeros(work, rel, size)
        if total == math.inf and work.dtype != np.float64:  # a quotient that float32 does not hold
            wide = np.dtype(np.float64)
            self._elementwise(work_for(wide, wide), d.astype(wide), size.astype(wide), begin, finite)
            return
        most = float(rel.max())
        self.zeros += zeros
        self.sum_rel += total
        self.max_rel = max(self.max_rel, most)
        for limit, name in ((5e-3, "near5"), (1e-3, "near1")):
            near = n if most <= limit else int(np.count_nonzero(np.less_equal(rel, limit, out=flag)))
            setattr(self, name, getattr(self, name) + near)
        if top > self.atol and most > 0.999 * self.rtol:
            np.multiply(size, self.rtol, out=size)
            np.add(size, self.atol, out=size)
            self.mismatch += int(np.count_nonzero(np.greater(d, size, out=flag)))
        self.ulps.look(begin, rel, most, finite, flag)
        self.spread.add(d, begin, flag)

    def _leave_out(self, part_a: AnyArray, part_b: AnyArray, indices: NDArray[np.intp], begin: int) -> None:
        """Count the elements that are not finite on one side or both; the sums take them as 0 on both sides."""
        a, b = part_a[indices].astype(np.float64), part_b[indices].astype(np.float64)
        unlike = indices[~((a == b) | (np.isnan(a) & np.isnan(b)))]
        if len(unlike):
            first = begin + int(unlike[0])
            if not math.isinf(self.max_abs):
                self.worst = first
            self.max_abs = self.max_rel = math.inf
            self.first = first if self.first < 0 else self.first
            self.unlike += len(unlike)
            self.mismatch += len(unlike)
            wrong = np.zeros(len(part_a))
            wrong[unlike] = 1
            self.spread.add(wrong, begin, np.empty(len(wrong), np.bool_), rare=True)
        # The caller will count them as zeros that agree: take that back in advance.
        self.compared -= len(indices)
        self.zeros -= len(indices)
        self.near1 -= len(indices)
        self.near5 -= len(indices)

    def result(self, shape: tuple[int, ...], parts: int) -> Exact:
        """Return the measures of a tensor of that shape; `parts` is 2 for complex numbers, else 1."""
        n, unlike = self.compared, bool(self.unlike)
        euclid = math.inf if unlike else math.sqrt(self.dd)
        norm = math.sqrt(self.bb)
        relative = 0.0 if euclid == 0 else (euclid / norm if norm > 0 and not unlike else math.inf)
        counted = n - self.zeros
        has_elements = bool(n or unlike)
        median, high, most = self.ulps.result()
        return Exact(
            relative_l2=relative,
            euclid=euclid,
            rmse=(math.inf if unlike else math.sqrt(self.dd / n)) if has_elements else None,
            cosine=_cosine(self.ab, self.aa, self.bb) if n else None,
            mape=(math.inf if unlike else self.sum_rel / counted) if counted > 0 else None,
            mape_excluded=self.zeros,
            max_abs_err=self.max_abs if has_elements else None,
            max_rel_err=self.max_rel if has_elements else None,
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


def _at_zeros(work: Work, rel: Reals, size: Reals) -> tuple[int, float]:
    """Set the relative errors where the reference is 0: to 0 where both sides are 0, else to infinity.

    Return the number of zeros of the reference, and the sum of the relative errors elsewhere.
    """
    n = len(rel)
    zeros = n - int(np.count_nonzero(size.view(work.integer)))
    np.fmax(rel, work.nothing[:n], out=rel)  # 0 / 0 is NaN, which this drops
    total = work.total(rel)
    if total == math.inf:
        wrong = np.flatnonzero(np.equal(rel, math.inf, out=work.flag[:n]))
        wrong = wrong[size[wrong] == 0]
        rel[wrong] = 0
        total = work.total(rel)
        rel[wrong] = math.inf
    return zeros, total


def _cosine(ab: float, aa: float, bb: float) -> float | None:
    """Return Σab / (‖a‖‖b‖) clipped to [-1, 1]; 1 for two zero tensors, None where only one is zero."""
    if aa == 0 and bb == 0:
        return 1.0
    if aa == 0 or bb == 0 or not math.isfinite(aa) or not math.isfinite(bb):
        return None
    return max(-1.0, min(1.0, ab / (math.sqrt(aa) * math.sqrt(bb))))


def _std(squares: float, total: float, n: int) -> float | None:
    return math.sqrt(max(0.0, squares / n - (total / n) ** 2)) if n else None
