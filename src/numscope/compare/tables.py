"""The tables of a comparison from its parts: `calls` and `pairs` as compare/schema.py has them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.pairing import REASONS
from numscope.compare.align.slots import OUTPUT, SlotPairs
from numscope.compare.judge.findings import EQUIVALENT, IDENTICAL, INHERITED, ORIGIN, VERDICTS
from numscope.compare.judge.walk import Judgement
from numscope.compare.load.side import Flags, Floats, Ints, Side, distinct
from numscope.compare.load.sources import Sources
from numscope.compare.measure.measures import Measures
from numscope.compare.schema import CALLS, PAIRS

_WRONG_SLOT = 1e-6  # relative: a slot of a wrong call that is off by more is wrong, too
_LARGE = 0.1  # relative: an error that is called rounding says in words why
_WHY = {"forward": "path", "recompute": "sequence"}
# Columns of measures that the table of tensor pairs takes as they are.
_NUMBERS = (
    "cosine",
    "rmse",
    "mape",
    "max_abs_err",
    "max_rel_err",
    "euclid",
    "relative_l2",
    "bias",
    "ulp_median",
    "ulp_p99",
    "ulp_max",
    "within_0_1_percent",
    "within_0_5_percent",
    "mismatch_share",
    "target_std",
    "reference_std",
)
_TEXTS = ("structure", "first_index", "worst_index")


def place_calls(alignment: Alignment, a: Side, b: Side) -> tuple[Ints, Ints, Ints]:
    """Return the pair of the alignment, the target's row and the reference's row of each row of `calls`; -1 for none."""
    n, m, k = len(alignment.target), len(alignment.alone_target), len(alignment.alone_reference)
    partner = np.full(len(b.calls) + 1, -1)
    partner[alignment.reference] = alignment.target
    # A call that only the reference has stands after the target's call whose partner ran last before it.
    before = np.maximum.accumulate(partner[: len(b.calls)]) if len(b.calls) else np.zeros(0, np.int64)
    where_b = before[alignment.alone_reference].astype(np.float64) + 0.5
    key = np.concatenate([alignment.target, alignment.alone_target, where_b])
    order = np.lexsort((np.concatenate([np.zeros(n + m), alignment.alone_reference]), key))
    pair = np.concatenate([np.arange(n), np.full(m + k, -1)])[order]
    target = np.concatenate([alignment.target, alignment.alone_target, np.full(k, -1)])[order]
    reference = np.concatenate([alignment.reference, np.full(m, -1), alignment.alone_reference])[order]
    return pair, target, reference


def calls_table(
    a: Side, b: Side, alignment: Alignment, judgement: Judgement, sources: tuple[Sources, Sources], offset: int
) -> tuple[pa.Table, Ints]:
    """Return the table of calls, and the row in it of each pair of the alignment."""
    pair, target, reference = place_calls(alignment, a, b)
    count = len(pair)
    matched = pair >= 0
    row_of_pair = np.full(len(alignment.target), -1)
    row_of_pair[pair[matched]] = np.flatnonzero(matched)
    own = target >= 0
    errors = judgement.errors

    def text(codes_a: Ints, codes_b: Ints) -> pa.Array:
        codes = np.where(own, codes_a[np.maximum(target, 0)] if len(codes_a) else -1, -1)
        codes = np.where(own, codes, codes_b[np.maximum(reference, 0)] if len(codes_b) else -1)
        return _words(a, codes)

    row_of_target = np.full(len(a.calls) + 1, -1)
    row_of_target[target[own]] = np.flatnonzero(own)
    row_of_reference = np.full(len(b.calls) + 1, -1)
    row_of_reference[reference[reference >= 0]] = np.flatnonzero(reference >= 0)
    parent = np.where(
        own, row_of_target[_take(a.calls.parent, target)], row_of_reference[_take(b.calls.parent, reference)]
    )
    files, lines = _sources(a, b, target, reference, own, sources)
    verdicts = np.where(matched, judgement.verdict[np.maximum(pair, 0)] if len(judgement.verdict) else 0, len(VERDICTS))
    why = np.where(matched, alignment.why[np.maximum(pair, 0)] if len(alignment.why) else 0, len(REASONS))
    names = np.array([_WHY.get(reason, reason) for reason in REASONS] + [""], dtype=object)
    words = np.where(judgement.doubtful, "doubtful", "certain").astype(object)
    in_words = _large_in_words(a, alignment, judgement)
    arguments = {p: "; ".join(str(d) for d in found) for p, found in judgement.differences.items()}
    columns = {
        "pair": pa.array(np.arange(offset, offset + count), pa.int32()),
        "step": pa.array(np.full(count, a.step), pa.int32()),
        "rank": pa.array(np.full(count, a.rank), pa.int32()),
        "target_order": _nullable(_take(a.calls.order, target), own),
        "reference_order": _nullable(_take(b.calls.order, reference), reference >= 0),
        "target_name": a.calls.names.take(_index(target)),
        "reference_name": b.calls.names.take(_index(reference)),
        "kind": text(a.calls.kind, b.calls.kind),
        "module": text(a.calls.module, b.calls.module),
        "phase": text(a.calls.phase, b.calls.phase),
        "parent": _nullable(parent + offset, parent >= 0),
        "alignment": pa.array(names[why], pa.string()),
        "confidence": pa.array(
            np.where(matched, words[np.maximum(pair, 0)], "") if len(words) else names[why], pa.string()
        ),
        "error_in": _floats(np.fmax(errors.error_in, errors.error_state), pair),
        "error_out": _floats(errors.error_out, pair),
        "expected": _floats(np.where(np.isnan(errors.error_out), np.nan, errors.expected), pair),
        "estimated": pa.array(
            np.where(matched, errors.estimated[np.maximum(pair, 0)] if matched.any() else False, False)
        ),
        "arguments_differ": pa.array([arguments.get(p) for p in pair.tolist()], pa.string()),
        "verdict": pa.array(
            np.array([*VERDICTS, "unmatched"], dtype=object)[verdicts],
            pa.string(),
            mask=matched & (judgement.unmeasured[np.maximum(pair, 0)] if matched.any() else False),
        ),
        "reason": pa.array(
            [judgement.reasons.get(p) or in_words.get(p, "") if p >= 0 else "" for p in pair.tolist()], pa.string()
        ),
        "source_file": files,
        "source_line": lines,
    }
    return pa.table(columns, schema=CALLS), row_of_pair + offset


def pairs_table(
    a: Side,
    b: Side,
    alignment: Alignment,
    slots: SlotPairs,
    measures: Measures,
    judgement: Judgement,
    rows: Ints,
    limits: Floats,
) -> pa.Table:
    """Return the table of tensor pairs."""
    row = measures.row_of
    t, r = slots.a, slots.b
    count = len(t)
    bitwise = measures.bitwise[row]
    slot = _words(a, slots.slot)
    columns: dict[str, pa.Array] = {
        "pair": pa.array(rows[slots.pair] if count else [], pa.int32()),
        "step": pa.array(np.full(count, a.step), pa.int32()),
        "rank": pa.array(np.full(count, a.rank), pa.int32()),
        "slot": slot,
        "target_name": _join(a.calls.names.take(pa.array(alignment.target[slots.pair])), slot),
        "reference_name": _join(b.calls.names.take(pa.array(alignment.reference[slots.pair])), slot),
        "target_dtype": _words(a, a.tensors.dtype[t]),
        "reference_dtype": _words(b, b.tensors.dtype[r]),
        "target_shape": _shape(a, a.tensors.shape[t]),
        "reference_shape": _shape(b, b.tensors.shape[r]),
        "bitwise_equal": pa.array(bitwise, mask=~(a.tensors.measured[t] & b.tensors.measured[r])),
        "estimated": pa.array(measures.estimated[row]),
        "expected": pa.array(_nan_to_null(judgement.errors.expected[slots.pair])),
        "resolution": _nan_to_null(np.where(slots.role == OUTPUT, limits[slots.pair], np.nan)),
        "verdict": _verdicts(judgement, slots, bitwise, measures.error[row]),
        "reason": pa.array(_reasons(a, b, alignment, slots, measures, judgement), pa.string()),
        "mape_excluded": _integers(measures.columns["mape_excluded"][row]),
    }
    another = measures.compared & ~measures.believed & columns["verdict"].is_null().to_numpy(zero_copy_only=False)
    for name in _NUMBERS:
        columns[name] = _nan_to_null(np.where(another, np.nan, measures.columns[name][row]))
    for name in _TEXTS:
        columns[name] = pa.array(measures.columns[name][row], pa.string())
    for label, side, tensor in (("target", a, t), ("reference", b, r)):
        measured = side.tensors.measured[tensor]
        for name in ("min", "max", "mean", "l2"):
            columns[f"{label}_{name}"] = _nan_to_null(getattr(side.tensors, name)[tensor])
        infinite = side.tensors.posinf[tensor] + side.tensors.neginf[tensor]
        for name, values in (("nan", side.tensors.nan[tensor]), ("inf", infinite), ("zero", side.tensors.zero[tensor])):
            columns[f"{label}_{name}"] = pa.array(values, pa.int64(), mask=~measured)
    return pa.table({field.name: columns[field.name] for field in PAIRS}, schema=PAIRS)


def _verdicts(judgement: Judgement, slots: SlotPairs, bitwise: Flags, error: Floats) -> pa.Array:
    call = judgement.verdict[slots.pair]
    # Other slots of a wrong call, such as an optimizer's state, are wrong for the same reason.
    of_wrong_call = np.isin(call, (ORIGIN, INHERITED))
    wrong = judgement.wrong_slots | (of_wrong_call & (error > np.fmax(judgement.errors.floor[slots.pair], _WRONG_SLOT)))
    of_wrong = np.where((call == ORIGIN) & (slots.role == OUTPUT), ORIGIN, INHERITED)
    verdict = np.where(bitwise, IDENTICAL, np.where(wrong, of_wrong, EQUIVALENT))
    unknown = judgement.unmeasured_slots | (np.isnan(error) & ~bitwise)
    return pa.array(np.array(VERDICTS, dtype=object)[verdict], pa.string(), mask=unknown & ~wrong)


def _large_in_words(a: Side, alignment: Alignment, judgement: Judgement) -> dict[int, str]:
    """Return why an error that is large is none, by pair of calls: no number alone explains it."""
    errors, optimizer = judgement.errors, a.book.code("optimizer")
    right = np.isin(judgement.verdict, (IDENTICAL, EQUIVALENT)) & ~judgement.unmeasured
    found: dict[int, str] = {}
    for pair in np.flatnonzero(right & (np.nan_to_num(errors.error_out) >= _LARGE)).tolist():
        limit = judgement.limits[pair]
        if a.calls.kind[alignment.target[pair]] == optimizer:
            found[pair] = "judged by the step that it takes"
        elif not judgement.corresponds[pair]:
            found[pair] = "the two calls do not do the same job: judged by where their results lead"
        elif errors.discrete_in[pair] or errors.discrete_out[pair]:
            found[pair] = "choices fell otherwise by rounding"
        elif limit >= 1.0:
            found[pair] = "cannot be judged: rounding may be as large as the result"
        else:
            found[pair] = f"rounding explains {limit:.2g} here, of {errors.error_in[pair]:.2g} that came in"
    return found


@dataclass(frozen=True)
class ExplainedDifferences:
    """The differences of a step's table that rounding explains."""

    largest: float  # of those without a reason beside them
    larger: int  # pairs that differ by more, for the reason beside them


def explained_differences(pairs: pa.Table) -> ExplainedDifferences:
    """Return what a step's table of pairs shows as equivalent."""
    rows = pairs.filter(pc.equal(pairs["verdict"], VERDICTS[EQUIVALENT]))
    errors = np.nan_to_num(rows["relative_l2"].to_numpy(zero_copy_only=False).astype(np.float64), posinf=np.inf)
    told = pc.not_equal(pc.fill_null(rows["reason"], ""), "").to_numpy(zero_copy_only=False) & (errors >= _LARGE)
    largest = float(errors[~told].max(initial=0.0))
    return ExplainedDifferences(largest, int((errors[told] > largest).sum()))


def _reasons(
    a: Side, b: Side, alignment: Alignment, slots: SlotPairs, measures: Measures, judgement: Judgement
) -> list[str]:
    row, t, r = measures.row_of, slots.a, slots.b
    reasons = [""] * len(row)
    words = a.book.words
    in_words, believed = _large_in_words(a, alignment, judgement), measures.believed
    large = np.flatnonzero(np.nan_to_num(measures.error[row]) >= _LARGE) if in_words else np.zeros(0, np.int64)
    made = {int(row[place]): in_words.get(int(slots.pair[place]), "") for place in large if slots.role[place] == OUTPUT}
    for place in large.tolist():
        reasons[place] = in_words.get(int(slots.pair[place])) or made.get(int(row[place]), "")
    for place in np.flatnonzero(~measures.same_shape[row]).tolist():
        mine, theirs = words[a.tensors.shape[t[place]]], words[b.tensors.shape[r[place]]]
        same = a.tensors.elements[t[place]] == b.tensors.elements[r[place]]
        how = "compared in row-major order" if same else "not comparable"
        how = how if not same or believed[place] else "not the same tensor in another layout, and not compared"
        reasons[place] = f"shape [{mine}] against [{theirs}]: {how}"
    for place in np.flatnonzero(measures.unlike_nonfinite[row]).tolist():
        x, y = t[place], r[place]
        inf_a, inf_b = (s.posinf[i] + s.neginf[i] for s, i in ((a.tensors, x), (b.tensors, y)))
        reasons[place] = (
            f"{a.tensors.nan[x]} NaN and {inf_a} infinite against {b.tensors.nan[y]} NaN and {inf_b} infinite"
        )
    for place in np.flatnonzero(measures.laid_out[row]).tolist():
        reasons[place] = "laid out by the map file; without data only counts, extremes, mean and norm are compared"
    for place in np.flatnonzero(measures.known[row] & np.isnan(measures.error[row])).tolist():
        reasons[place] = (
            reasons[place] or "how far apart they are cannot be told: one is a mask, or a mask hides the rest"
        )
    unmeasured = ~(a.tensors.measured[t] & b.tensors.measured[r]) & measures.same_shape[row]
    for place in np.flatnonzero(unmeasured).tolist():
        reasons[place] = "not measured: only the structure was kept"
    return reasons


def _sources(
    a: Side, b: Side, target: Ints, reference: Ints, own: Flags, sources: tuple[Sources, Sources]
) -> tuple[pa.Array, pa.Array]:
    of_target, of_reference = sources
    files_a, lines_a = of_target.columns(np.where(own, _take(a.calls.stack, target), -1))
    if own.all():
        return files_a, lines_a
    files_b, lines_b = of_reference.columns(np.where(own, -1, _take(b.calls.stack, reference)))
    mask = pa.array(own)
    return pc.if_else(mask, files_a, files_b), pc.if_else(mask, lines_a, lines_b)


def _take(values: Ints, rows: Ints) -> Ints:
    if not len(values):
        return np.full(len(rows), -1)
    return np.where(rows >= 0, values[np.maximum(rows, 0)], -1)


def _index(rows: Ints) -> pa.Array:
    return pa.array(rows, pa.int64(), mask=rows < 0)


def _nullable(values: Ints, there: Flags) -> pa.Array:
    return pa.array(values, pa.int32(), mask=~there)


def _floats(values: Floats, pair: Ints) -> pa.Array:
    if not len(values):
        return pa.nulls(len(pair), pa.float64())
    return _nan_to_null(np.where(pair >= 0, values[np.maximum(pair, 0)], np.nan))


def _nan_to_null(values: ArrayLike) -> pa.Array:
    numbers = np.asarray(values, dtype=np.float64)
    return pa.array(numbers, pa.float64(), mask=np.isnan(numbers))


def _integers(values: ArrayLike) -> pa.Array:
    numbers = np.asarray(values, dtype=np.float64)
    return pa.array(np.nan_to_num(numbers).astype(np.int64), pa.int64(), mask=np.isnan(numbers))


def _words(side: Side, codes: Ints) -> pa.Array:
    present, place = distinct(codes)
    words = pa.array([side.book.words[code] if code >= 0 else None for code in present.tolist()], pa.string())
    return words.take(pa.array(place))


def _shape(side: Side, codes: Ints) -> pa.Array:
    present, place = distinct(codes)
    words = pa.array([f"[{side.book.words[code]}]" if code >= 0 else None for code in present.tolist()], pa.string())
    return words.take(pa.array(place))


def _join(names: pa.Array, slots: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(names, slots, ".")
