"""The facts of one step: all that is known of its two sides before the first call is judged, and that never changes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.arguments import Difference
from numscope.compare.align.pairing import VALUE
from numscope.compare.align.slots import OUTPUT, SlotPairs
from numscope.compare.judge.batch_parts import batch_shapes, pairs_that_load_data
from numscope.compare.judge.correspondence import (
    Differences,
    corresponding_pairs,
    differing_arguments,
    part_backward_pairs,
    part_pairs_with_lone_inputs,
)
from numscope.compare.judge.doubtful_pairs import doubtful_pairs
from numscope.compare.judge.findings import Dtypes, ErrorSizes, Finding, Inputs, LoneCall, Reason, Who
from numscope.compare.judge.other_ranks import OtherRanks
from numscope.compare.judge.paths.dataflow import Flow, flow, unrelated_sources
from numscope.compare.judge.reasons import one_sided_call
from numscope.compare.judge.rounding.call_errors import CallErrors, call_errors, forward_pairs
from numscope.compare.judge.rounding.limits import common_roundoff
from numscope.compare.judge.rounding.moments import Moments
from numscope.compare.judge.rounding.precisions import Precisions
from numscope.compare.load.side import Flags, Floats, Ints, Side, distinct
from numscope.compare.load.unrecorded_inputs import is_source, loosened, records_inputs
from numscope.compare.load.verified import Own
from numscope.compare.measure.measures import Measures
from numscope.core.dtypes import rounding_near_zero, unit_roundoff
from numscope.core.operators import Rounding, operator, operator_of_module

_SAME_RESULT = 1e-5  # relative: two tensors this near are the same intermediate result
_ENOUGH_ELEMENTS = 256  # for a correlation with the result to mean anything
_NOISE_RUNS = 4.0  # times the error that noise runs show is explained


class WrongSide(NamedTuple):
    """The side whose call computes wrongly, and what is wrong with it."""

    who: Who
    words: str


@dataclass(frozen=True)
class OneSide:
    """One side of a step, with its half of the alignment; for what is done to each side in turn."""

    who: Who
    side: Side
    flow: Flow
    calls: Ints  # row of each pair's call
    pair_of: Ints  # pair of each call, -1 for none
    lone_calls: Ints
    lone_slots: Ints  # slots, of paired calls, that have no counterpart

    def lone(self, row: int) -> LoneCall:
        """Return a call of this side as one that this side alone has."""
        return LoneCall(target=row) if self.who == "target" else LoneCall(reference=row)


@dataclass(frozen=True)
class Facts:
    """Two sides of a step, aligned and measured, with all that follows from that alone."""

    a: Side
    b: Side
    alignment: Alignment
    slots: SlotPairs
    measures: Measures
    sides: tuple[OneSide, OneSide]  # the target, the reference
    flow_a: Flow
    flow_b: Flow
    errors: CallErrors
    moments: Moments
    limits: Floats  # explained at each pair, with the user's factor and the noise runs' measure
    differences: Differences  # arguments that differ
    corresponding: Flags  # pairs that correspond as far as they can be told before judging
    doubtful: Flags  # pairs that rest on the order of calls alone: they do not correspond
    forward_pair: Ints  # of each pair, -1 for none
    backward_pairs: dict[int, list[int]]  # by row of the target's forward call
    unrelated_sources: Flags  # slot pairs of two tensors that nothing recorded made and that are not the same tensor
    unmeasured: Flags  # slot pairs that could not be compared because one side has no fingerprint
    has_inner_calls: Flags
    batch_shapes: str  # of the data, where the two sides are given parts of other sizes of a batch
    inputs_unrecorded: bool
    modules_only: bool
    two_precisions: bool
    coarser_roundoff: float  # of two precisions, 0 where there is one
    same_result: float  # relative: two tensors this near are the same intermediate result
    other_ranks: OtherRanks | None
    slot_start: Ints  # slot_start[p] : slot_start[p + 1] are the slot pairs of pair p

    @cached_property
    def only_gives_alike(self) -> Flags:
        """Which pairs are of two operators, paired because they give nearly the same."""
        one, other = self.a.calls.op[self.alignment.target], self.b.calls.op[self.alignment.reference]
        return np.asarray((self.alignment.why == VALUE) & (one != other))

    # Slot pairs -----------------------------------------------------------------------------------------------------

    def rows(self, pair: int) -> range:
        return range(self._starts[pair], self._starts[pair + 1])

    def given(self, pair: int) -> list[int]:
        return [row for row in self.rows(pair) if not self._is_made[row]]

    def made(self, pair: int) -> list[int]:
        return [row for row in self.rows(pair) if self._is_made[row]]

    def tensors(self, row: int) -> tuple[int, int]:
        return self._tensors[row]

    def slot(self, row: int) -> str:
        return str(self.a.book.words[self.slots.slot[row]])

    def error(self, row: int) -> float:
        """Return the error of a slot pair; NaN where it is not known."""
        return self._errors[row]

    def error_or_zero(self, row: int) -> float:
        error = self.error(row)
        return 0.0 if math.isnan(error) else error

    # As Python's own lists: they are read one by one, which takes numpy five times as long.

    @cached_property
    def _is_made(self) -> list[bool]:
        made: list[bool] = (self.slots.role == OUTPUT).tolist()
        return made

    @cached_property
    def _tensors(self) -> list[tuple[int, int]]:
        return list(zip(self.flow_a.same[self.slots.a].tolist(), self.flow_b.same[self.slots.b].tolist()))

    @cached_property
    def _errors(self) -> list[float]:
        errors: list[float] = self.measures.error[self.measures.row_of].tolist()
        return errors

    @cached_property
    def _starts(self) -> list[int]:
        starts: list[int] = self.slot_start.tolist()
        return starts

    def reference_norms(self, rows: list[int]) -> Floats:
        """Return the reference's norms of slot pairs, 0 where they are not known."""
        norms = self.b.tensors.l2[self.slots.b[rows]] if rows else np.zeros(0)
        return np.nan_to_num(norms, nan=0.0)

    def errors_or_zero(self, rows: list[int]) -> Floats:
        return np.array([self.error_or_zero(row) for row in rows], dtype=np.float64)

    def scaled_error(self, row: int) -> float:
        """Return the part of the error that is a multiple of the result: rounding has none, a wrong factor nothing else.

        Rounding's own part is about one over the root of the number of elements that count (a few huge ones may be all
        that do), and a sketch adds an eighth.
        """
        measure, t = self.measures.row_of[row], self.slots.a[row]
        correlation = abs(float(self.measures.columns["correlation"][measure]))
        largest = max(abs(self.a.tensors.min[t]), abs(self.a.tensors.max[t]))
        count = (self.a.tensors.l2[t] / largest) ** 2 if largest > 0 else 0.0
        if not count >= _ENOUGH_ELEMENTS:
            return 0.0
        least = max(0.6 if self.measures.estimated[measure] else 0.25, 5.0 / count**0.5)
        return correlation * self.error_or_zero(row) if correlation > least else 0.0

    def is_telling(self, row: int) -> bool:
        """Return whether agreement in this tensor means anything: a constant one agrees with whatever was masked out."""
        t = self.slots.a[row]
        low, high = self.a.tensors.min[t], self.a.tensors.max[t]
        return bool(low < high or (self.a.tensors.elements[t] == 1 and low not in (0.0, 1.0)))

    # Precision ------------------------------------------------------------------------------------------------------

    def dtype(self, side: Side, tensor: int) -> str:
        return str(side.book.words[side.tensors.dtype[tensor]])

    def roundoff(self, t: int, r: int) -> float:
        """Return the unit roundoff that a pair of tensors may differ by: the coarser only between two precisions."""
        coarser = self.two_precisions or self.dtype(self.a, t) == self.dtype(self.b, r)
        return common_roundoff([self._roundoff(self.a, t), self._roundoff(self.b, r)], coarser)

    def _roundoff(self, side: Side, tensor: int) -> float:
        name, norm = self.dtype(side, tensor), float(side.tensors.l2[tensor])
        step = rounding_near_zero(name) / float(side.tensors.scale[tensor])
        below = step * float(side.tensors.elements[tensor]) ** 0.5
        return unit_roundoff(name) + (min(1.0, below / norm) if norm > 0 else 0.0)

    # Calls ----------------------------------------------------------------------------------------------------------

    def phase(self, pair: int) -> str:
        return str(self.a.book.words[self.a.calls.phase[self.alignment.target[pair]]])

    def kind(self, pair: int) -> str:
        return str(self.a.book.words[self.a.calls.kind[self.alignment.target[pair]]])

    def order(self, pair: int) -> float:
        return float(self.alignment.target[pair])

    def calls(self, pair: int) -> tuple[int, int]:
        """Return the rows of a pair's two calls."""
        return int(self.alignment.target[pair]), int(self.alignment.reference[pair])

    def target_name(self, pair: int) -> str:
        return self.a.calls.name(int(self.alignment.target[pair]))

    def pair_of(self, call: int) -> int:
        """Return the pair of a target's call, -1 for none."""
        target, _ = self.sides
        return int(target.pair_of[call]) if call >= 0 else -1

    def place_of_reference(self, call: int) -> float:
        """Return where a call that only the reference has would stand in the target's order."""
        before = self.alignment.target[self.alignment.reference < call]
        return float(before.max(initial=-1)) + 0.5

    def rounding_class(self, side: Side, call: int) -> int:
        if side.calls.kind[call] == side.book.code("module"):
            return operator(operator_of_module(side.book.words[side.calls.module_class[call]])).rounding
        return operator(side.book.words[side.calls.op[call]]).rounding

    def argument_differences(self, pair: int) -> list[Difference]:
        """Return the arguments in which a pair of calls differs; those of its forward call for a backward one."""
        if pair not in self.differences and self.phase(pair) == "backward":
            pair = int(self.forward_pair[pair])
        return self.differences.get(pair, [])

    def has_telling_arguments(self, pair: int) -> bool:
        """Return whether a pair of calls differs in an argument of its own that changes numbers."""
        return any(difference.telling for difference in self.differences.get(pair, ()))

    def hides_inputs(self, pair: int) -> bool:
        """Return whether a pair's inputs were not recorded: they are then taken to be the results of the calls before."""
        return self.inputs_unrecorded and not is_source(self.a, int(self.alignment.target[pair]))

    # Findings -------------------------------------------------------------------------------------------------------

    def finding(self, reason: Reason, pair: int, sizes: ErrorSizes, slot: str = "") -> Finding:
        """Return a finding about a pair of calls."""
        target, reference = self.calls(pair)
        differ = tuple(self.differences.get(pair, ()))
        place = (self.a.step, self.a.rank, float(target))
        return Finding(reason, pair, target, reference, *place, *sizes, differ, slot)

    def computes_wrongly(self, pair: int) -> WrongSide | None:
        """Return which side's call computes wrongly, where both were verified and one alone does."""
        target, reference = self.calls(pair)
        ours, theirs = self.a.calls.verified, self.b.calls.verified
        if ours is None or theirs is None:
            return None
        mine, other = ours.of(target), theirs.of(reference)
        if mine is Own.WRONG and other in (Own.SOUND, Own.RIGHT):
            return WrongSide("target", ours.wrong[target])
        if other is Own.WRONG and mine in (Own.SOUND, Own.RIGHT):
            return WrongSide("reference", theirs.wrong[reference])
        return None

    def is_exact(self, pair: int) -> bool:
        """Tell whether a forward call is, on both sides, one operator that is exact in all that it makes of what is recorded.

        Backward calls also read what forward left behind: that they compute rightly does not say that it was right.
        """
        target, reference = self.calls(pair)
        ours, theirs = self.a.calls.verified, self.b.calls.verified
        if ours is None or theirs is None or self.phase(pair) != "forward" or self.hides_inputs(pair):
            return False
        if any(np.isnan(self.error(row)) for row in self.given(pair)):
            return False
        right = ours.of(target) is Own.RIGHT and theirs.of(reference) is Own.RIGHT
        return right and ours.operator[target] == theirs.operator[reference]

    def finding_with_evidence(self, reason: Reason, pair: int, sizes: ErrorSizes, slot: str = "") -> Finding:
        """Return a finding about a pair of calls with all else in which they differ, for what is wrong at the pair itself."""
        return replace(
            self.finding(reason, pair, sizes, slot),
            differences=tuple(self.argument_differences(pair)),
            random=bool(self.errors.operator[pair] == Rounding.RANDOM),
            dtypes=self._dtypes(pair),
            inputs=self._inputs(pair),
        )

    def lone_finding(
        self,
        lone: LoneCall,
        shows_in: str,
        sizes: ErrorSizes,
        slot: str = "",
        *,
        order: float | None = None,
        inputs: Inputs = Inputs.RECORDED,
    ) -> Finding:
        """Return a finding about a call that one side alone has, and that shows in a later call."""
        if order is None:
            order = float(lone.target) if lone.target >= 0 else self.place_of_reference(lone.reference)
        place = (self.a.step, self.a.rank, order)
        reason = one_sided_call(lone.target, shows_in)
        return Finding(reason, -1, lone.target, lone.reference, *place, *sizes, slot=slot, inputs=inputs)

    def _inputs(self, pair: int) -> Inputs:
        if is_source(self.a, int(self.alignment.target[pair])) and not self.given(pair):
            return Inputs.NONE
        if self.inputs_unrecorded:
            return Inputs.UNRECORDED
        came_in = np.fmax(self.errors.error_in[pair], self.errors.error_state[pair])
        given = self.given(pair)
        unknown = not self.measures.compared[given].all() or any(math.isnan(self.error(row)) for row in given)
        unmeasured = not came_in > 0 and unknown
        return Inputs.UNMEASURED if unmeasured else Inputs.RECORDED

    def _dtypes(self, pair: int) -> Dtypes | None:
        for row in self.made(pair):
            t, r = self.tensors(row)
            dtypes = Dtypes(self.dtype(self.a, t), self.dtype(self.b, r))
            if dtypes.target != dtypes.reference:
                return dtypes
        return None


def gather_facts(
    a: Side,
    b: Side,
    alignment: Alignment,
    slots: SlotPairs,
    measures: Measures,
    precisions: Precisions | None = None,
    *,
    noise: Floats | None = None,
    scale: float = 1.0,
    other_ranks: OtherRanks | None = None,
    chips: frozenset[str] = frozenset(),
) -> Facts:
    """Return the facts of a step whose two sides are aligned and measured.

    `noise`: the largest error that noise runs show at each pair; `scale`: the user's factor on what is explained.
    """
    errors = call_errors(a, b, alignment, slots, measures, precisions is not None, chips)
    flow_a, flow_b = flow(a), flow(b)
    inputs_unrecorded = not (records_inputs(a) and records_inputs(b))
    has_inner_calls = (a.calls.children[alignment.target] > 0) | (b.calls.children[alignment.reference] > 0)
    shapes = batch_shapes(a, b, alignment, slots)
    unrelated = unrelated_sources(flow_a, flow_b, slots, measures.error[measures.row_of])
    differing = differing_arguments(a, b, alignment)
    corresponding = corresponding_pairs(a, b, alignment, slots, has_inner_calls, unrelated)
    if shapes or measures.unseen is not None:
        corresponding[pairs_that_load_data(flow_a, alignment, differing)] = False
    if not inputs_unrecorded:
        part_pairs_with_lone_inputs(a, b, alignment, slots, corresponding, differing)
    doubtful = doubtful_pairs(flow_a, flow_b, alignment, slots)
    corresponding[doubtful] = False
    part_backward_pairs(a, alignment, corresponding)
    coarser = precisions.roundoff if precisions is not None else 0.0
    fingerprinted = a.tensors.measured[slots.a] & b.tensors.measured[slots.b]
    return Facts(
        a=a,
        b=b,
        alignment=alignment,
        slots=slots,
        measures=measures,
        sides=(
            _one_side("target", a, flow_a, alignment.target, alignment.alone_target, slots.alone_a),
            _one_side("reference", b, flow_b, alignment.reference, alignment.alone_reference, slots.alone_b),
        ),
        flow_a=flow_a,
        flow_b=flow_b,
        errors=errors,
        moments=Moments(a, b, alignment, slots, measures),
        limits=_limits(errors, inputs_unrecorded, scale, noise),
        differences=differing,
        corresponding=corresponding,
        doubtful=doubtful,
        forward_pair=forward_pairs(alignment, a),
        backward_pairs=_backward_pairs(a, alignment),
        unrelated_sources=unrelated,
        unmeasured=~fingerprinted & ~measures.known[measures.row_of],
        has_inner_calls=has_inner_calls,
        batch_shapes=shapes,
        inputs_unrecorded=inputs_unrecorded,
        modules_only=_modules_only(a, b),
        two_precisions=precisions is not None,
        coarser_roundoff=coarser,
        same_result=max(_SAME_RESULT, 16.0 * coarser),
        other_ranks=other_ranks,
        slot_start=np.searchsorted(slots.pair, np.arange(len(alignment.target) + 1)),
    )


def _one_side(who: Who, side: Side, flow: Flow, calls: Ints, lone_calls: Ints, lone_slots: Ints) -> OneSide:
    pair_of = np.full(len(side.calls), -1)
    pair_of[calls] = np.arange(len(calls))
    return OneSide(who, side, flow, calls, pair_of, lone_calls, lone_slots)


def _limits(errors: CallErrors, inputs_unrecorded: bool, scale: float, noise: Floats | None) -> Floats:
    """Return the error that is explained at each pair."""
    limits = errors.expected * scale
    if inputs_unrecorded:
        limits = loosened(limits, errors.operator, errors.roundoff)
    return limits if noise is None else np.fmax(limits, _NOISE_RUNS * np.nan_to_num(noise))


def _backward_pairs(a: Side, alignment: Alignment) -> dict[int, list[int]]:
    """Return the pairs of backward calls by the row of the target's forward call."""
    found: dict[int, list[int]] = {}
    forward = a.calls.forward[alignment.target]
    for pair in np.flatnonzero((forward >= 0) & ~a.calls.recompute[alignment.target]).tolist():
        found.setdefault(int(forward[pair]), []).append(pair)
    return found


def _modules_only(a: Side, b: Side) -> bool:
    """Return whether neither side recorded functions or operators, so that other calls may stand between any two."""
    inner = {a.book.code("api"), a.book.code("aten")}
    return not any(inner & set(distinct(side.calls.kind)[0].tolist()) for side in (a, b))
