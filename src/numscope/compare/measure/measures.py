"""Measures of all tensor pairs of a step at once: from fingerprints, and exact where both sides kept the data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import numpy as np

from numscope.compare.load.side import Flags, Floats, Ints, Side
from numscope.compare.measure.exact import Exact, measure_arrays
from numscope.compare.measure.mapped_layouts import LaidOut, Loader, Rows, lay_out
from numscope.compare.measure.masked import look_through_masks
from numscope.core.dtypes import AnyArray, unit_roundoff

Layouts = dict[int, LaidOut]  # by row of the target's tensors
EXACT_COLUMNS = tuple(field.name for field in fields(Exact))
RESOLUTION = 2.0**-26  # relative: smaller errors do not show in a sketch in float32
STATISTICS = 2.0**-20  # relative: smaller differences do not show in another tool's statistics in float32
_UNLIKE = 0.5  # relative: further apart, two tensors of different shapes are not the same in row-major order
_SHARED = 1 << 22  # elements: below this, threads take longer to start than the work takes
_MOST_THREADS = 8


@dataclass(frozen=True)
class Measures:
    """One row per distinct pair of tensors. NaN means unknown; infinity is a measure like any other."""

    a: Ints
    b: Ints
    row_of: Ints  # row of each slot pair
    bitwise: Flags
    known: Flags  # there is a distance, measured or estimated
    same_shape: Flags
    unlike_nonfinite: Flags  # NaN or infinity on one side alone
    estimated: Flags
    columns: dict[str, AnyArray]  # EXACT_COLUMNS
    error: Floats  # the judge's: relative L2 over the larger of the norms where the reference is zero; inf; NaN unknown
    laid_out: Flags  # brought into the reference's layout, and compared by statistics alone
    # Of tensors that are compared by statistics alone: how far off they may be besides, as those with sketches are.
    unseen: Floats | None = None

    @property
    def believed(self) -> Flags:
        """Whether the two tensors of each slot pair can be the same one: of another shape and unlike, they are not."""
        unlike = ~self.same_shape & ~self.bitwise & ~self.laid_out & (np.nan_to_num(self.error) > _UNLIKE)
        return np.asarray(self.compared & ~unlike[self.row_of])

    @property
    def compared(self) -> Flags:
        """Whether anything is known of how far apart the two tensors of each slot pair are."""
        return np.asarray((self.known | self.unlike_nonfinite)[self.row_of])


def measure(a: Side, b: Side, t: Ints, r: Ints, load: Loader | None = None, layouts: Layouts | None = None) -> Measures:
    """Return the measures of the tensor pairs (t, r), each distinct pair measured once."""
    width = len(b.tensors.hash) + 1
    distinct, row_of = np.unique(t * width + r, return_inverse=True)
    t, r = distinct // width, distinct % width
    ta, tb = a.tensors, b.tensors
    same_dtype = ta.dtype[t] == tb.dtype[r]
    same_shape = ta.shape[t] == tb.shape[r]
    measured = ta.measured[t] & tb.measured[r]
    bitwise = measured & same_dtype & same_shape & (ta.hash[t] == tb.hash[r])
    elements = ta.elements[t]
    # A complex number counts as two real ones: sketches of a complex and of a real tensor cannot be compared.
    pairs = np.array([word.startswith("complex") for word in a.book.words] + [False])
    alike = pairs[ta.dtype[t]] == pairs[tb.dtype[r]]
    known = measured & (elements == tb.elements[r]) & ta.sketched[t] & tb.sketched[r] & alike
    unlike = measured & (elements == tb.elements[r]) & _unlike(a, b, t, r)
    bounded = ~known & ~bitwise & (elements == tb.elements[r]) & _has_statistics(a, t) & _has_statistics(b, r)
    unlike |= bounded & _one_side_nonfinite(a, b, t, r)
    columns = _estimate(a, b, t, r, known, bitwise, unlike)
    _bound(a, b, t, r, bounded & ~unlike, columns)
    sampled = ~known & ~bitwise & ~unlike & (elements == tb.elements[r]) & ta.sampled[t] & tb.sampled[r]
    known |= bounded
    estimated = np.ones(len(t), np.bool_)
    if load is not None:
        _from_samples(a, b, t, r, np.flatnonzero(sampled), columns, known, load)
        _exact(a, b, t, r, columns, estimated, bitwise, load)
    error = _judged_error(a, b, t, r, columns["relative_l2"], columns["euclid"], bitwise)
    # Where the bits differ and the sketches do not, the error is below their resolution.
    exact = np.array([not unit_roundoff(word) for word in a.book.words] + [False])[ta.dtype[t]]  # integers: no rounding
    unresolved = estimated & known & ~bitwise & ~(bounded & exact & (error == 0))
    error = np.where(unresolved, np.fmax(error, RESOLUTION), error)
    # A mask of bools and a mask of numbers to add may mean the same: their distance means nothing.
    flags = np.array([word == "bool" for word in a.book.words] + [False])
    error = np.where((flags[ta.dtype[t]] != flags[tb.dtype[r]]) & (error != 0), np.nan, error)
    masked = np.flatnonzero((error != 0) & ~_unlike(a, b, t, r))
    look_through_masks(a, b, t, r, masked, error, ~(bitwise | estimated), load)
    laid_out = np.zeros(len(t), np.bool_)
    if layouts:
        rows = Rows(columns, estimated, bitwise, known, unlike, error)
        laid_out = lay_out(a, b, t, r, layouts, load, STATISTICS, rows)
    return Measures(t, r, row_of, bitwise, known | bitwise, same_shape, unlike, estimated, columns, error, laid_out)


def _unlike(a: Side, b: Side, t: Ints, r: Ints) -> Flags:
    unlike = np.zeros(len(t), np.bool_)
    for name in ("nan", "posinf", "neginf"):
        unlike |= getattr(a.tensors, name)[t] != getattr(b.tensors, name)[r]
    return unlike


def _has_statistics(side: Side, rows: Ints) -> Flags:
    tensors = side.tensors
    there = [~np.isnan(column[rows]) for column in (tensors.min, tensors.max, tensors.mean)]
    return np.asarray(np.logical_and.reduce(there))


def _norms(side: Side, rows: Ints) -> Floats:
    """Return the norms; where a dump has none, their upper bound: √n times the largest element."""
    tensors = side.tensors
    largest = np.maximum(np.abs(tensors.min[rows]), np.abs(tensors.max[rows]))
    norms = tensors.l2[rows]
    return np.where(np.isnan(norms), np.sqrt(np.maximum(tensors.elements[rows], 1)) * largest, norms)


def _one_side_nonfinite(a: Side, b: Side, t: Ints, r: Ints) -> Flags:
    """Return where one side alone has NaN or infinities; an imported run has no counts of them, only that there are some."""
    unlike = np.zeros(len(t), np.bool_)
    for name in ("nan", "posinf", "neginf"):
        unlike |= (getattr(a.tensors, name)[t] > 0) != (getattr(b.tensors, name)[r] > 0)
    return unlike


def _bound(a: Side, b: Side, t: Ints, r: Ints, rows: Flags, columns: dict[str, AnyArray]) -> None:
    """Fill in the least distance of two tensors with these statistics.

    The norms, the extremes and √n times the means differ by no more than the Euclidean distance. Other tools write
    statistics in float32: differences below its resolution count as zero.
    """
    ta, tb = a.tensors, b.tensors
    root = np.sqrt(np.maximum(ta.elements[t], 1))
    norms = _norms(b, r)
    scale = np.maximum(norms, _norms(a, t))
    least = np.nan_to_num(np.abs(ta.l2[t] - tb.l2[r]))  # a norm that a dump does not have bounds nothing
    for bound in (ta.max[t] - tb.max[r], ta.min[t] - tb.min[r], (ta.mean[t] - tb.mean[r]) * root):
        least = np.maximum(least, np.abs(bound))
    least = np.where(least <= STATISTICS * scale, 0.0, least)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(least == 0, 0.0, least / norms)
    for name, values in (("euclid", least), ("relative_l2", relative), ("rmse", least / root)):
        columns[name] = np.where(rows, values, columns[name])


def _estimate(a: Side, b: Side, t: Ints, r: Ints, known: Flags, bitwise: Flags, unlike: Flags) -> dict[str, AnyArray]:
    """Return estimates from the sketches; sketches are linear, so the difference of two is the sketch of the difference."""
    count = len(t)
    columns: dict[str, AnyArray] = {name: np.full(count, np.nan) for name in EXACT_COLUMNS}
    for name in ("structure", "first_index", "worst_index"):
        columns[name] = np.full(count, None, dtype=object)
    euclid = np.full(count, np.nan)
    correlation = np.full(count, np.nan)
    rows = np.flatnonzero(known & ~bitwise)
    for begin in range(0, len(rows), 8192):
        part = rows[begin : begin + 8192]
        theirs = b.tensors.sketch[r[part]]
        difference = a.tensors.sketch[t[part]] - theirs
        euclid[part] = np.sqrt(np.einsum("ij,ij->i", difference, difference))
        norms = euclid[part] * np.sqrt(np.einsum("ij,ij->i", theirs, theirs))
        correlation[part] = np.einsum("ij,ij->i", difference, theirs) / np.where(norms > 0, norms, np.nan)
    euclid[bitwise] = 0.0
    norm_a, norm_b = a.tensors.l2[t], b.tensors.l2[r]
    # Norms are of the finite elements: a tensor without any has none.
    norm_a, norm_b = np.where(np.isnan(norm_a), 0.0, norm_a), np.where(np.isnan(norm_b), 0.0, norm_b)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = np.where(euclid == 0, 0.0, euclid / norm_b)
        finite = a.tensors.elements[t] - a.tensors.nan[t] - a.tensors.posinf[t] - a.tensors.neginf[t]
        rmse = np.where(finite > 0, euclid / np.sqrt(np.maximum(finite, 1)), np.nan)
        cosine = (norm_a**2 + norm_b**2 - euclid**2) / (2 * norm_a * norm_b)
    cosine = np.where((norm_a == 0) & (norm_b == 0), 1.0, np.where((norm_a == 0) | (norm_b == 0), np.nan, cosine))
    cosine = np.where(bitwise & (finite > 0), 1.0, np.clip(cosine, -1.0, 1.0))
    columns["euclid"] = np.where(unlike, np.inf, euclid)
    columns["relative_l2"] = np.where(unlike, np.inf, relative)
    columns["rmse"] = np.where(unlike, np.inf, rmse)
    columns["cosine"] = np.where(np.isnan(euclid), np.nan, cosine)
    columns["correlation"] = correlation
    for name in ("max_abs_err", "max_rel_err", "mape", "mismatch_share"):
        columns[name] = np.where(bitwise & (finite > 0), 0.0, np.nan)
    return columns


def _exact(
    a: Side,
    b: Side,
    t: Ints,
    r: Ints,
    columns: dict[str, AnyArray],
    estimated: Flags,
    bitwise: Flags,
    load: Loader,
) -> None:
    words = a.book.words
    both = a.tensors.kept[t] & b.tensors.kept[r] & (a.tensors.elements[t] == b.tensors.elements[r])
    estimated[both & bitwise] = False

    def measured(row: int) -> Exact | None:
        arrays = load(int(t[row]), int(r[row]))
        dtypes = (words[a.tensors.dtype[t[row]]], words[b.tensors.dtype[r[row]]])
        return None if arrays is None else measure_arrays(*arrays, dtypes)

    rows = np.flatnonzero(both & ~bitwise)
    for row, exact in zip(rows.tolist(), _each(measured, rows, int(a.tensors.elements[t[rows]].sum()))):
        if exact is None:
            continue
        estimated[row] = False
        for name in EXACT_COLUMNS:
            value = getattr(exact, name)
            columns[name][row] = value if value is not None or columns[name].dtype == object else np.nan


def _from_samples(
    a: Side, b: Side, t: Ints, r: Ints, rows: Ints, columns: dict[str, AnyArray], known: Flags, load: Loader
) -> None:
    """Fill in measures of samples of the same elements, for pairs without sketches: another tool's sampled dumps."""
    words = a.book.words
    for row in rows.tolist():
        arrays = load(int(t[row]), int(r[row]))
        if arrays is None:
            continue
        target, reference = arrays
        if not target.size or target.size != reference.size:
            continue
        exact = measure_arrays(target, reference, (words[a.tensors.dtype[t[row]]], words[b.tensors.dtype[r[row]]]))
        to_whole = float(np.sqrt(a.tensors.elements[t[row]] / target.size))
        for name, factor in (("euclid", to_whole), ("relative_l2", 1.0), ("rmse", 1.0)):
            if (value := getattr(exact, name)) is not None:
                columns[name][row] = np.fmax(
                    columns[name][row], factor * value
                )  # the bound of the statistics may be higher
                known[row] = True
        columns["cosine"][row] = np.nan if exact.cosine is None else exact.cosine


def _each(work: Callable[[int], Exact | None], rows: Ints, elements: int) -> Iterable[Exact | None]:
    """Return the result for each row; several threads share large work, as numpy releases Python's lock."""
    cores = min(
        _MOST_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if cores == 1 or len(rows) < 2 or elements < _SHARED:
        return map(work, rows.tolist())
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(cores) as threads:
        return list(threads.map(work, rows.tolist()))


def _judged_error(a: Side, b: Side, t: Ints, r: Ints, relative: Floats, euclid: Floats, bitwise: Flags) -> Floats:
    norm_a = np.nan_to_num(_norms(a, t))
    with np.errstate(divide="ignore", invalid="ignore"):
        against_own = np.where(norm_a > 0, euclid / norm_a, 0.0)
    zero_reference = ~(_norms(b, r) > 0) & np.isfinite(euclid)
    error = np.where(zero_reference, against_own, relative)
    return np.where(bitwise, 0.0, error)
