"""The error of every pair of calls, and how much of it rounding explains, for a step at once.

Rounding explains the error that a call may add though its inputs are the same (the floor), and the error that came in, as
large as it may have become on the way through; rounding.py has the rules for both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.slots import INPUT, OUTPUT, STATE, SlotPairs
from numscope.compare.judge.rounding.accuracy import Accuracy, measured
from numscope.compare.judge.rounding.choices import error_of_other_rows, explained_flips, flipped, values_agree
from numscope.compare.judge.rounding.limits import (
    KINK,
    MOST_CANCELLATION,
    TWO_PRECISIONS,
    Norms,
    bounds,
    error_of_coarser,
)
from numscope.compare.load.side import Flags, Floats, Ints, Side
from numscope.compare.measure.masked import filled
from numscope.compare.measure.measures import RESOLUTION, Measures
from numscope.core.dtypes import SINGLE, is_discrete, rounding_near_zero, unit_roundoff
from numscope.core.operators import Operator, Rounding, Trait, operator, operator_of_module

_TINY = 1e-300  # stands for a norm of zero under a fraction


@dataclass(frozen=True)
class CallErrors:
    """The errors that came in and went out, and how much is explained, per pair of calls; NaN where unknown."""

    error_in: Floats
    error_state: Floats
    error_out: Floats
    floor: Floats
    gain: Floats  # of a relative error on the way through
    expected: Floats
    roundoff: Floats
    discrete_in: Flags  # an integer or bool input differs
    discrete_out: Flags
    flipped: Floats  # elements of a discrete output that differ, at most
    choices: Floats  # elements of that output
    estimated: Flags
    operator: Ints  # a Rounding each
    name: list[str]  # canonical operator
    identical: Flags  # every slot is the same to the bit


def call_errors(
    a: Side,
    b: Side,
    alignment: Alignment,
    slots: SlotPairs,
    measures: Measures,
    two_precisions: bool,
    chips: frozenset[str] = frozenset(),
) -> CallErrors:
    """Return the errors of every pair of calls and how much of them rounding explains."""
    count = len(alignment.target)
    columns = _SlotColumns(count, a, b, slots, measures)
    operators = _Operators(a, alignment)
    error_in = columns.worst(slots.role == INPUT)
    if measures.unseen is not None:
        error_in = np.fmax(error_in, columns.largest(slots.role == INPUT, measures.unseen[measures.row_of]))
    error_state = columns.worst(slots.role == STATE)
    error_out = columns.worst(columns.made)
    roundoff = _roundoff(columns, operators, two_precisions)
    forward = forward_pairs(alignment, a)
    norms = _norms(columns, operators, roundoff, forward, measured(chips))
    bound = bounds(operators.rounding, operators.backward, operators.having(Trait.SIGN_LIKE), norms)
    # Errors are relative to the reference, and rounding is in proportion to the larger of the two.
    larger = np.maximum(columns.of_worst_output(columns.larger), 1.0)
    floor, absolute, relative = larger * (bound.floor * roundoff), larger * bound.absolute, larger * bound.relative
    differs = columns.any(columns.made & columns.dtype_differs)
    floor = np.where(differs & two_precisions, np.fmax(floor, TWO_PRECISIONS * roundoff), floor)
    estimated = columns.any(measures.estimated[measures.row_of] & ~columns.bitwise)
    floor = np.where(estimated, floor + 4 * RESOLUTION, floor)
    came_in = np.fmax(np.nan_to_num(error_in, nan=0.0), np.nan_to_num(error_state, nan=0.0))
    came_in = np.where(operators.backward, np.fmax(came_in, _forward_errors(forward, error_in, error_out)), came_in)
    with np.errstate(invalid="ignore", over="ignore"):
        carried = np.where(absolute > 0, absolute * columns.moved_in(norms), 0.0) + relative * came_in
        kinked = operators.having(Trait.KINKED) & operators.backward
        carried += np.where(kinked, KINK * np.sqrt(np.minimum(came_in, 1.0)), 0.0)
        carried += error_of_coarser(columns.coarsened(), came_in, norms.out_elements, columns.peak())
    expected = floor + carried
    discrete_in = columns.any((slots.role == INPUT) & columns.discrete & ~columns.bitwise)
    discrete_out = columns.any(columns.made & columns.discrete & ~columns.bitwise)
    places = _flipped_places(columns, operators, slots.role == INPUT, forward)
    expected = expected + error_of_other_rows(places, columns.peak())
    flips = _explained_choices(columns, operators, norms, came_in, expected)
    expected = np.where(discrete_out, np.where(discrete_in | flips, np.inf, floor), expected)
    return CallErrors(
        error_in=error_in,
        error_state=error_state,
        error_out=error_out,
        floor=floor,
        gain=relative,
        expected=expected,
        roundoff=roundoff,
        discrete_in=discrete_in,
        discrete_out=discrete_out,
        flipped=columns.largest(columns.made & columns.discrete & ~columns.bitwise, columns.flips.most),
        choices=columns.largest(columns.made & columns.discrete & ~columns.bitwise, columns.elements),
        estimated=estimated,
        operator=operators.rounding,
        name=operators.names,
        identical=~columns.any(~columns.bitwise),
    )


def forward_pairs(alignment: Alignment, a: Side) -> Ints:
    """Return, for each pair, the pair of its forward call, or -1."""
    pair_of = np.full(len(a.calls) + 1, -1)
    pair_of[alignment.target] = np.arange(len(alignment.target))
    return pair_of[a.calls.forward[alignment.target]]


def _forward_errors(forward: Ints, error_in: Floats, error_out: Floats) -> Floats:
    """Return the larger error of the inputs and outputs of a backward call's forward call, 0 where it has none."""
    both = np.fmax(np.nan_to_num(error_in), np.nan_to_num(error_out))
    return np.where(forward >= 0, both[np.maximum(forward, 0)], 0.0)


def _flipped_places(columns: _SlotColumns, operators: _Operators, given: Flags, forward: Ints) -> Floats:
    """Return the share of the places by which each call chooses that are others; a backward call reads its forward call's."""
    differs = columns.discrete & ~columns.bitwise
    share = columns.flips.most / np.maximum(columns.elements, 1.0)
    places = columns.largest(differs & given, share)
    behind = np.fmax(places, columns.largest(differs & columns.made, share))[np.maximum(forward, 0)]
    return np.where(operators.backward & (forward >= 0), np.fmax(places, behind), places)


def _explained_choices(
    columns: _SlotColumns, operators: _Operators, norms: Norms, came_in: Floats, expected: Floats
) -> Flags:
    """Return which calls chose otherwise within the margin that came in."""
    values = columns.made & (~columns.discrete | columns.first)
    several = columns.any(columns.made & ~columns.first)
    error = np.nan_to_num(columns.worst(values), nan=0.0)
    moved = np.where(operators.rounding == Rounding.DISCRETE, columns.moved_in(norms), 0.0)
    agree = values_agree(error, expected, moved)
    most = explained_flips(came_in, norms.in_elements, operators.having(Trait.RANKS))
    few = columns.largest(columns.made & columns.discrete, columns.flips.least) <= most
    by_value = several & columns.any(values & columns.made)
    return np.where(operators.is_module, came_in > 0, np.where(by_value, agree, few & (came_in > 0)))


class _Operators:
    """The operators of the pairs of calls, as the table of operators knows them."""

    def __init__(self, a: Side, alignment: Alignment) -> None:
        words, calls, rows = a.book.words, a.calls, alignment.target
        is_module = calls.kind[rows] == a.book.code("module")
        self.names = [
            operator_of_module(words[module_class]) if of_module else words[code]
            for code, of_module, module_class in zip(
                calls.op[rows].tolist(), is_module.tolist(), calls.module_class[rows].tolist()
            )
        ]
        self._operators: list[Operator] = [operator(name) for name in self.names]
        self.rounding = np.array([one.rounding for one in self._operators], dtype=np.int64)
        self.rounding[calls.kind[rows] == a.book.code("collective")] = Rounding.COMMUNICATE
        self.backward = calls.phase[rows] == a.book.code("backward")
        self.is_module = is_module

    def having(self, trait: Trait) -> Flags:
        """Return which pairs' operators have a trait."""
        return np.array([trait in one.traits for one in self._operators], dtype=np.bool_)


class _SlotColumns:
    """Columns per pair of slots, and their reductions per pair of calls."""

    def __init__(self, count: int, a: Side, b: Side, slots: SlotPairs, measures: Measures) -> None:
        row = measures.row_of
        words = a.book.words
        self.count, self.pair = count, slots.pair
        self.made = slots.role == OUTPUT
        self.bitwise = measures.bitwise[row]
        self.error = measures.error[row]
        tensors_a, tensors_b = a.tensors, b.tensors
        l2 = tensors_b.l2[slots.b]
        with np.errstate(invalid="ignore"):
            self.moved = np.nan_to_num(measures.columns["euclid"][row], nan=0.0)
        self.norm = np.fmax(np.nan_to_num(l2), np.nan_to_num(tensors_a.l2[slots.a]))
        self.elements = tensors_b.elements[slots.b].astype(np.float64)
        masked = filled(b, slots.b)
        unit = np.array([unit_roundoff(word) for word in words] + [0.0])
        dtype_a, dtype_b = tensors_a.dtype[slots.a], tensors_b.dtype[slots.b]
        with np.errstate(divide="ignore", invalid="ignore"):
            # A result that is nothing but rounding is as large as its dtype rounds.
            most = np.fmax(MOST_CANCELLATION, 64.0 * unit[dtype_a] / unit[dtype_b])
            larger = np.clip(self.norm / l2, 1.0, most)
        self.larger = np.where(masked | ~np.isfinite(larger), 1.0, larger)
        least = np.fmin(np.abs(tensors_b.min[slots.b]), np.abs(tensors_b.max[slots.b]))
        self.norm = np.where(masked, least * np.sqrt(self.elements), self.norm)
        self.moved = np.where(masked, np.nan_to_num(self.error) * self.norm, self.moved)
        variance = l2**2 / np.maximum(self.elements, 1) - tensors_b.mean[slots.b] ** 2
        self.deviation = np.sqrt(np.maximum(np.nan_to_num(variance), 0.0))
        self.dtype_differs = dtype_a != dtype_b
        near_zero = np.array([rounding_near_zero(word) for word in words] + [0.0])
        share = np.sqrt(self.elements) / np.maximum(self.norm, _TINY)  # of the norm, that one step in each element is
        self.roundoff_a = unit[dtype_a] + np.minimum(1.0, near_zero[dtype_a] / tensors_a.scale[slots.a] * share)
        self.roundoff_b = unit[dtype_b] + np.minimum(1.0, near_zero[dtype_b] / tensors_b.scale[slots.b] * share)
        discrete = np.array([is_discrete(word) for word in words] + [False])
        self.discrete = discrete[dtype_a] & discrete[dtype_b]
        self.given = ~self.made & ~self.discrete
        self.first = slots.slot == a.book.code("output.0")
        low = np.fmin(tensors_a.min[slots.a], tensors_b.min[slots.b])
        high = np.fmax(tensors_a.max[slots.a], tensors_b.max[slots.b])
        with np.errstate(invalid="ignore"):
            distance = np.where(np.isfinite(self.error), measures.columns["euclid"][row], np.nan)
            self.flips = flipped(distance, self.elements, np.nan_to_num(high - low, nan=1.0), measures.estimated[row])
            largest = np.fmax(np.abs(low), np.abs(high))
            self.peaks = np.nan_to_num(largest * np.sqrt(self.elements) / np.maximum(self.norm, _TINY), nan=1.0)

    def worst(self, chosen: Flags) -> Floats:
        """Return each call's largest error among the chosen slots, NaN where none is known."""
        result = np.full(self.count, np.nan)
        np.fmax.at(result, self.pair[chosen], self.error[chosen])
        return result

    def any(self, chosen: Flags) -> Flags:
        """Return which calls have a chosen slot."""
        result = np.zeros(self.count, np.bool_)
        result[self.pair[chosen]] = True
        return result

    def largest(self, chosen: Flags, values: Floats) -> Floats:
        """Return each call's largest value among the chosen slots, 0 for none."""
        result = np.zeros(self.count)
        np.fmax.at(result, self.pair[chosen], values[chosen])
        return result

    def logarithms(self, chosen: Flags, values: Floats, least: float) -> Floats:
        """Return each call's sum of the logarithms of the chosen slots' values."""
        result = np.zeros(self.count)
        np.add.at(result, self.pair[chosen], np.log(np.maximum(values[chosen], least)))
        return result

    def of_worst_output(self, values: Floats) -> Floats:
        """Return the value of the output that is off by the most: the one that the rule must explain."""
        chosen = self.made & ~self.discrete & (self.elements > 0)
        result = np.full(self.count, np.nan)
        order = np.argsort(np.nan_to_num(self.error[chosen], nan=-1.0, posinf=np.inf), kind="stable")
        result[self.pair[chosen][order]] = values[chosen][order]
        return np.asarray(np.nan_to_num(result))

    def peak(self) -> Floats:
        """Return how many times the largest element of each call's outputs is as large as their root mean square."""
        return np.maximum(self.largest(self.made & ~self.discrete, self.peaks), 1.0)

    def coarsened(self) -> Floats:
        """Return the roundoff of each call's results where it is coarser than that of what it is given, else 0."""
        both = np.fmin(self.roundoff_a, self.roundoff_b)
        made, given = self.largest(self.made & ~self.discrete, both), self.largest(self.given, both)
        return np.where((made > given) & (given > 0), made, 0.0)

    def moved_in(self, norms: Norms) -> Floats:
        """Return the distance between the two sides' inputs of each call, relative to the norm of its output."""
        there = np.where(np.isfinite(self.moved), self.moved, 0.0)[self.given]
        moved = np.bincount(self.pair[self.given], weights=there, minlength=self.count).astype(np.float64)
        widened = np.sqrt(np.maximum(1.0, norms.out_elements / norms.in_elements))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(moved > 0, moved * widened / np.maximum(norms.out, _TINY), 0.0)


def _roundoff(columns: _SlotColumns, operators: _Operators, two_precisions: bool) -> Floats:
    """Return the unit roundoff that counts: of the coarser side only where the runs are of two precisions."""
    coarser = np.fmax(columns.roundoff_a, columns.roundoff_b)
    finer = np.fmin(columns.roundoff_a, columns.roundoff_b)
    finer = np.where(finer > 0, np.fmax(finer, np.fmin(coarser, SINGLE)), 0.0)
    each = coarser if two_precisions else np.where(columns.dtype_differs, finer, coarser)
    outputs = columns.largest(columns.made, each)
    everything = columns.largest(np.ones(len(columns.pair), np.bool_), each)
    # A loss rounds what it makes inside to the dtype of what it is given (on a CPU under autocast, all but its result).
    composite = (operators.rounding == Rounding.OTHER) | (operators.rounding == Rounding.EXPONENTIAL)
    inside = operators.backward | composite | (outputs == 0)
    return np.where(inside, everything, outputs)


def _norms(columns: _SlotColumns, operators: _Operators, roundoff: Floats, forward: Ints, accuracy: Accuracy) -> Norms:
    """Return the norms of the inputs and outputs of each pair of calls."""
    given = columns.given
    out = columns.of_worst_output(columns.norm)
    largest_in = columns.largest(given, columns.norm)
    has_forward = operators.backward & (forward >= 0)
    behind = np.maximum(forward, 0)
    return Norms(
        roundoff=roundoff,
        out=out,
        off_elements=np.maximum(columns.of_worst_output(columns.elements), 1),
        out_elements=np.maximum(columns.largest(columns.made & ~columns.discrete, columns.elements), 1),
        largest_in=largest_in,
        in_elements=np.maximum(columns.largest(given, columns.elements), 1),
        deviation=columns.largest(given, columns.deviation),
        log_product=columns.logarithms(given, columns.norm, _TINY),
        log_elements=columns.logarithms(given, columns.elements, 1),
        forward_in=np.where(has_forward, largest_in[behind], 0.0),
        forward_out=np.where(has_forward, out[behind], 0.0),
        averages=operators.having(Trait.AVERAGES),
        own=accuracy.of_pairs(operators.names, operators.rounding, operators.backward, roundoff > 4 * SINGLE),
    )
