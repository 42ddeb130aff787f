"""What rounding alone explains at each pair of calls, vectorised over a step.

Two parts: what the call's own rounding may add though its inputs are the same (`floor`), and what the error that came
in may have become on the way through (`carried`). Both follow from norms that every fingerprint has: a sum rounds in
proportion to its terms, not to its result, so that a result which cancels to nearly nothing may differ by all of
itself (the gradient of a key's bias, which is zero but for rounding). docs/explanation/verdicts.md gives the reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.slots import INPUT, OUTPUT, STATE, SlotPairs
from numscope.compare.load.side import Flags, Floats, Ints, Side
from numscope.compare.measure.measures import RESOLUTION, Measures, filled
from numscope.core.dtypes import SINGLE, is_discrete, rounding_near_zero, unit_roundoff
from numscope.core.operators import Rounding, Trait, names_with, operator, operator_of_module

_LARGE = 1e6  # no cancellation is believed beyond this factor


@dataclass(frozen=True)
class CallErrors:
    """What came in, what went out and what is explained, per pair of calls; NaN where unknown."""

    error_in: Floats
    error_state: Floats
    error_out: Floats
    floor: Floats
    gain: Floats  # of a relative error on the way through
    expected: Floats
    roundoff: Floats
    discrete_in: Flags  # an integer or bool input differs
    discrete_out: Flags
    estimated: Flags
    operator: Ints  # class of operators.py
    name: list[str]  # canonical operator
    identical: Flags  # every slot is the same to the bit
    measured: Flags  # at least one slot could be measured
    dtype_differs: Flags  # an output's dtype differs between the sides


def call_errors(
    a: Side, b: Side, alignment: Alignment, slots: SlotPairs, measures: Measures, two_precisions: bool
) -> CallErrors:
    """Return errors and what rounding explains of them for every pair of calls."""
    count = len(alignment.target)
    table = _SlotTable(a, b, slots, measures)
    names, classes, backward = _operators(a, b, alignment)
    error_in = table.worst(count, slots.role == INPUT)
    error_state = table.worst(count, slots.role == STATE)
    error_out = table.worst(count, slots.role == OUTPUT)
    roundoff = _roundoff(count, slots, table, classes, backward, two_precisions)
    scale = _Scales(count, a, b, alignment, slots, table, backward)
    floor, gain_abs, gain_rel = (scale.larger * part for part in _rules(classes, names, backward, roundoff, scale))
    differs = table.any(count, (slots.role == OUTPUT) & table.dtype_differs)
    floor = np.where(differs & two_precisions, np.fmax(floor, 4.0 * roundoff), floor)
    estimated = table.any(count, measures.estimated[measures.row_of] & ~table.bitwise)
    floor = np.where(estimated, floor + 4 * RESOLUTION, floor)
    came_in = np.fmax(np.nan_to_num(error_in, nan=0.0), np.nan_to_num(error_state, nan=0.0))
    if backward.any():
        came_in = np.where(backward, np.fmax(came_in, _forward_errors(alignment, a, error_in, error_out)), came_in)
    with np.errstate(invalid="ignore", over="ignore"):
        carried = np.where(gain_abs > 0, gain_abs * scale.moved, 0.0) + gain_rel * came_in
        kinked = np.array([name in names_with(Trait.KINKED) for name in names], dtype=np.bool_) & backward
        carried += np.where(kinked, 6.0 * np.sqrt(np.minimum(came_in, 1.0)), 0.0)
    discrete_in = table.any(count, (slots.role == INPUT) & table.discrete & ~table.bitwise)
    discrete_out = table.any(count, (slots.role == OUTPUT) & table.discrete & ~table.bitwise)
    flips = discrete_in | (discrete_out & (came_in > 0))
    expected = np.where(flips, np.inf, floor + carried)
    return CallErrors(
        error_in=error_in,
        error_state=error_state,
        error_out=error_out,
        floor=floor,
        gain=gain_rel,
        expected=expected,
        roundoff=roundoff,
        discrete_in=discrete_in,
        discrete_out=discrete_out,
        estimated=estimated,
        operator=classes,
        name=names,
        identical=~table.any(count, ~table.bitwise),
        measured=table.any(count, measures.known[measures.row_of]),
        dtype_differs=differs,
    )


class _SlotTable:
    """Columns per slot pair that several rules need."""

    def __init__(self, a: Side, b: Side, slots: SlotPairs, measures: Measures) -> None:
        row = measures.row_of
        words = a.book.words
        self.pair, self.role = slots.pair, slots.role
        self.bitwise = measures.bitwise[row]
        self.error = measures.error[row]
        with np.errstate(invalid="ignore"):
            self.moved = np.nan_to_num(measures.columns["euclid"][row], nan=0.0)
        self.norm = np.fmax(np.nan_to_num(b.tensors.l2[slots.b]), np.nan_to_num(a.tensors.l2[slots.a]))
        self.elements = b.tensors.elements[slots.b].astype(np.float64)
        masked = filled(b, slots.b)
        roundoff = np.array([unit_roundoff(word) for word in words] + [0.0])
        dtype_a, dtype_b = a.tensors.dtype[slots.a], b.tensors.dtype[slots.b]
        with np.errstate(divide="ignore", invalid="ignore"):
            # What is nothing but rounding is as large as its dtype rounds.
            apart = np.fmax(_LARGE, 64.0 * roundoff[dtype_a] / roundoff[dtype_b])
            larger = np.clip(self.norm / b.tensors.l2[slots.b], 1.0, apart)
        self.larger = np.where(masked | ~np.isfinite(larger), 1.0, larger)
        least = np.fmin(np.abs(b.tensors.min[slots.b]), np.abs(b.tensors.max[slots.b]))
        self.norm = np.where(masked, least * np.sqrt(self.elements), self.norm)
        self.moved = np.where(masked, np.nan_to_num(self.error) * self.norm, self.moved)
        spread = b.tensors.l2[slots.b] ** 2 / np.maximum(self.elements, 1) - b.tensors.mean[slots.b] ** 2
        self.std = np.sqrt(np.maximum(np.nan_to_num(spread), 0.0))
        self.largest = np.fmax(np.abs(b.tensors.max[slots.b]), np.abs(b.tensors.min[slots.b]))
        discrete = np.array([is_discrete(word) for word in words] + [False])
        self.dtype_differs = dtype_a != dtype_b
        steps = np.array([rounding_near_zero(word) for word in words] + [0.0])
        below = np.sqrt(self.elements) / np.maximum(self.norm, 1e-300)
        self.roundoff_a = roundoff[dtype_a] + np.minimum(1.0, steps[dtype_a] / a.tensors.scale[slots.a] * below)
        self.roundoff_b = roundoff[dtype_b] + np.minimum(1.0, steps[dtype_b] / b.tensors.scale[slots.b] * below)
        self.discrete = discrete[dtype_a] & discrete[dtype_b]

    def worst(self, count: int, chosen: Flags) -> Floats:
        result = np.full(count, np.nan)
        np.fmax.at(result, self.pair[chosen], self.error[chosen])
        return result

    def any(self, count: int, chosen: Flags) -> Flags:
        result = np.zeros(count, np.bool_)
        result[self.pair[chosen]] = True
        return result

    def most(self, count: int, chosen: Flags, values: Floats) -> Floats:
        result = np.zeros(count)
        np.fmax.at(result, self.pair[chosen], values[chosen])
        return result

    def total(self, count: int, chosen: Flags, values: Floats) -> Floats:
        return np.bincount(self.pair[chosen], weights=values[chosen], minlength=count).astype(np.float64)


def _operators(a: Side, b: Side, alignment: Alignment) -> tuple[list[str], Ints, Flags]:
    words, module = a.book.words, a.book.code("module")
    codes = a.calls.op[alignment.target]
    is_module = a.calls.kind[alignment.target] == module
    classes_of_modules = a.calls.module_class[alignment.target]
    names = [
        operator_of_module(words[cls]) if mod else words[code]
        for code, mod, cls in zip(codes.tolist(), is_module.tolist(), classes_of_modules.tolist())
    ]
    kinds = {name: operator(name).rounding for name in set(names)}
    classes = np.array([kinds[name] for name in names], dtype=np.int64)
    collective = a.calls.kind[alignment.target] == a.book.code("collective")
    classes[collective] = Rounding.COMMUNICATE
    backward = a.calls.phase[alignment.target] == a.book.code("backward")
    return names, classes, backward


def common_roundoff(sides: Sequence[float], coarser: bool) -> float:
    """Return the unit roundoff by which two sides may differ.

    It is that of the `coarser` one, or else that of the finer one, but not less than float32's unless both are finer:
    double precision on one side does not make float32 on the other a fault.
    """
    if coarser or not sides:
        return max(sides, default=0.0)
    least = min(sides)
    return max(least, min(max(sides), SINGLE)) if least else 0.0


def _roundoff(
    count: int, slots: SlotPairs, table: _SlotTable, classes: Ints, backward: Flags, two_precisions: bool
) -> Floats:
    """Return the unit roundoff that counts: of the coarser side only where the runs are of two precisions."""
    worse = np.fmax(table.roundoff_a, table.roundoff_b)
    finer = np.fmin(table.roundoff_a, table.roundoff_b)
    finer = np.where(finer > 0, np.fmax(finer, np.fmin(worse, SINGLE)), 0.0)
    same_policy = np.where(table.dtype_differs, finer, worse)
    each = worse if two_precisions else same_policy
    outputs = table.most(count, slots.role == OUTPUT, each)
    everything = table.most(count, np.ones(len(slots.pair), np.bool_), each)
    inside = backward | (classes == Rounding.OTHER) | (outputs == 0)
    return np.where(inside, everything, outputs)


class _Scales:
    """Norms of what goes in and comes out, per pair of calls."""

    def __init__(
        self, count: int, a: Side, b: Side, alignment: Alignment, slots: SlotPairs, table: _SlotTable, backward: Flags
    ) -> None:
        out, given = slots.role == OUTPUT, slots.role != OUTPUT
        smooth = ~table.discrete
        self.out = self._least(count, out & smooth & (table.elements > 0), table, table.norm)
        # Errors are relative to the reference, and what rounds is the larger of the two.
        self.larger = np.maximum(self._least(count, out & smooth & (table.elements > 0), table, table.larger), 1.0)
        worst = self._least(count, out & smooth & (table.elements > 0), table, table.elements)
        self.worst_elements = np.maximum(worst, 1)  # of the output that is off by the most
        self.out_elements = np.maximum(table.most(count, out & smooth, table.elements), 1)
        self.largest_in = table.most(count, given & smooth, table.norm)
        self.in_elements = np.maximum(table.most(count, given & smooth, table.elements), 1)
        self.std_in = table.most(count, given & smooth, table.std)
        self.magnitude_in = table.most(count, given & smooth, table.largest)
        product = np.zeros(count)
        elements = np.zeros(count)
        with np.errstate(divide="ignore"):
            np.add.at(product, slots.pair[given & smooth], np.log(np.maximum(table.norm[given & smooth], 1e-300)))
            np.add.at(elements, slots.pair[given & smooth], np.log(np.maximum(table.elements[given & smooth], 1)))
        self.product, self.product_elements = product, elements
        moved = table.total(count, given & smooth, np.where(np.isfinite(table.moved), table.moved, 0.0))
        widen = np.sqrt(np.maximum(1.0, self.out_elements / self.in_elements))
        with np.errstate(divide="ignore", invalid="ignore"):
            self.moved = np.where(moved > 0, moved * widen / np.maximum(self.out, 1e-300), 0.0)
        forward = forward_pairs(alignment, a)
        have = backward & (forward >= 0)
        safe = np.maximum(forward, 0)
        self.forward_in = np.where(have, self.largest_in[safe], 0.0)
        self.forward_out = np.where(have, self.out[safe], 0.0)
        self.forward_product = np.where(have, product[safe], 0.0)

    @staticmethod
    def _least(count: int, chosen: Flags, table: _SlotTable, values: Floats) -> Floats:
        """Return the norm of the output that is off by the most: the one the rule must explain."""
        result = np.full(count, np.nan)
        order = np.argsort(np.nan_to_num(table.error[chosen], nan=-1.0, posinf=np.inf), kind="stable")
        result[table.pair[chosen][order]] = values[chosen][order]
        known: Floats = np.nan_to_num(result)
        return known


def forward_pairs(alignment: Alignment, a: Side) -> Ints:
    """Return, for each pair, the pair of its forward call, or -1."""
    pair_of = np.full(len(a.calls) + 1, -1)
    pair_of[alignment.target] = np.arange(len(alignment.target))
    return pair_of[a.calls.forward[alignment.target]]


def _forward_errors(alignment: Alignment, a: Side, error_in: Floats, error_out: Floats) -> Floats:
    forward = forward_pairs(alignment, a)
    safe = np.maximum(forward, 0)
    both = np.fmax(np.nan_to_num(error_in), np.nan_to_num(error_out))
    return np.where(forward >= 0, both[safe], 0.0)


def _rules(
    classes: Ints, names: list[str], backward: Flags, roundoff: Floats, scale: _Scales
) -> tuple[Floats, Floats, Floats]:
    """Return the floor, the gain of absolute errors and the gain of relative ones."""
    low = roundoff > 4 * SINGLE
    out = np.maximum(scale.out, 1e-300)
    is_mean = np.array(["mean" in name or "avg_pool" in name or name.endswith("_loss") for name in names])
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        depth = np.sqrt(np.maximum(np.exp(np.minimum(scale.product_elements, 600.0)) / scale.out_elements, 1.0))
        depth = np.clip(depth, 1.0, scale.in_elements)
        reduced = np.maximum(scale.in_elements / scale.out_elements, 1.0)
        product = np.exp(np.clip(scale.product, -600, 600))
        cancel_product = np.clip(product / (out * np.sqrt(depth)), 1.0, _LARGE)
        share = np.where(is_mean, reduced, 1.0)
        cancel_sum = np.clip(scale.largest_in / (out * share), 1.0, _LARGE)
        flat = np.sqrt(scale.in_elements) * scale.std_in
        centred = np.clip(scale.largest_in / np.maximum(flat, 1e-300), 1.0, _LARGE)
        # The mean that a normalisation gives back beside its result is a sum, which may cancel to nothing.
        terms = np.maximum(scale.in_elements / scale.worst_elements, 1.0)
        centred = np.where(terms > 1, np.fmax(centred, np.clip(scale.largest_in / (out * terms), 1.0, _LARGE)), centred)
        slope = np.where(scale.forward_in > 0, scale.forward_out / np.maximum(scale.forward_in, 1e-300), 1.0)
        cancel_back = np.clip(scale.largest_in * np.maximum(slope, 1.0) / out, 1.0, _LARGE)
        back_product = np.exp(np.clip(scale.product, -600, 600)) * scale.forward_in / out
        cancel_back = np.maximum(cancel_back, np.clip(back_product / np.sqrt(scale.in_elements), 1.0, _LARGE))
        rms_to_top = np.clip(10.0 * scale.largest_in / np.sqrt(scale.in_elements), 4.0, 1e4)
    # Low precisions accumulate in float32: their depth adds little.
    deep = np.where(low, 1.0, 4.0 + np.sqrt(depth) / 4.0)
    deep_sum = np.where(low, 1.0, 4.0 + np.sqrt(reduced) / 4.0)
    floor, gain_abs, gain_rel = np.full(len(classes), 16.0), np.zeros(len(classes)), np.full(len(classes), 32.0)

    def rule(kind: int, floors: Floats | float, absolute: Floats | float, relative: Floats | float) -> None:
        here = classes == kind
        floor[here] = np.broadcast_to(floors, here.shape)[here]
        gain_abs[here] = np.broadcast_to(absolute, here.shape)[here]
        gain_rel[here] = np.broadcast_to(relative, here.shape)[here]

    rule(Rounding.MOVE, 0.0, 4.0, 2.0)
    rule(Rounding.LIPSCHITZ, 4.0, 4.0, 2.0)
    rule(Rounding.SCALE, 4.0, 0.0, 8.0 * np.clip(product / out, 1.0, 32.0))
    rule(Rounding.PRODUCT, np.where(low, 4.0, deep) * cancel_product, 0.0, 8.0 * cancel_product)
    rule(Rounding.SUM, np.where(low, 4.0, deep_sum) * cancel_sum, 4.0, 8.0 * cancel_sum)
    rule(Rounding.NORMALISE, np.where(low, 2.0, 8.0) * centred, 0.0, 16.0 * centred)
    rule(Rounding.EXPONENTIAL, np.where(low, 3.0, 8.0), 0.0, np.maximum(16.0, 2.0 * rms_to_top))
    rule(Rounding.STEEP, 8.0, 0.0, 48.0)
    rule(Rounding.DISCRETE, 0.0, 0.0, np.inf)
    rule(Rounding.CREATE, 4.0, 0.0, 8.0)
    rule(Rounding.RANDOM, 4.0, 4.0, 4.0)
    rule(Rounding.COMMUNICATE, 8.0, 4.0, 8.0)
    gain_rel = np.where(classes == Rounding.DISCRETE, 1e3, gain_rel)
    gain_rel = np.where([name in names_with(Trait.SIGN_LIKE) for name in names], _LARGE, gain_rel)
    behind = backward & (classes != Rounding.MOVE)
    floor = np.where(behind, np.where(low, 6.0, 16.0 + np.sqrt(scale.in_elements) / 4.0) * cancel_back, floor)
    gain_rel = np.where(behind, 24.0 * cancel_back, gain_rel)
    gain_abs = np.where(behind, 4.0, gain_abs)
    # Backward of a gather is a sum.
    gathered = backward & (classes == Rounding.MOVE)
    floor = np.where(gathered, np.where(low, 2.0, 8.0), floor)
    floor = np.where(low & ~backward, np.minimum(floor, 256.0), floor)
    return floor * roundoff, gain_abs, gain_rel
