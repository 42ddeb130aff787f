"""Names the call of a region that makes two tensors differ, though what leads into the region is right.

Calls that one side alone has, pairs that do not do the same job, a call that writes into a tensor which others still
hold, or the call that is given another tensor: of these the first in the order of running.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from numscope.compare.align.slots import OUTPUT
from numscope.compare.judge.facts import Facts, OneSide
from numscope.compare.judge.findings import ErrorSizes, Finding, LoneCall
from numscope.compare.judge.paths.counterparts import changed_places, same_values
from numscope.compare.judge.paths.dataflow import Flow, Region, RegionPair, region
from numscope.compare.judge.reasons import (
    AnotherLayout,
    AnotherTensor,
    DoesAnotherJob,
    GradientOnOneSide,
    UnrecordedWork,
    WritesInPlace,
)
from numscope.compare.judge.rules.gradients import lone_gradient
from numscope.compare.judge.state import SideState, State
from numscope.compare.load.side import Ints, Side
from numscope.compare.measure.masked import filled
from numscope.core.operators import IDLE, Rounding

_MOST_PAIRS = 10_000  # of intermediate results that are compared


class _Move(NamedTuple):
    """A call that only moves elements, with a tensor that it is given and one that it makes."""

    given: int
    made: int
    call: int


def region_cause(state: State, pair: int, row: int, regions: RegionPair, sizes: ErrorSizes) -> Finding:
    """Return a finding about the call that makes a slot's two tensors differ."""
    narrow = narrowed(state, row, regions)
    telling = _first_with_other_arguments(state.facts, narrow)
    if telling >= 0:
        return state.facts.finding(DoesAnotherJob(), telling, sizes)
    finding = _Search(state, pair, row, narrow, sizes).finding()
    return replace(finding, batch_shapes=state.facts.batch_shapes)


def _first_with_other_arguments(facts: Facts, regions: RegionPair) -> int:
    """Return the first pair of a region whose arguments differ in a way that changes numbers, -1 for none."""
    for pair in sorted(facts.differences):
        target, reference = facts.calls(pair)
        inside = target in regions.target.calls and reference in regions.reference.calls
        if inside and facts.has_telling_arguments(pair):
            return pair
    return -1


class _Search:
    """The search for the call to name, once regions are narrowed and no arguments differ."""

    def __init__(self, state: State, pair: int, row: int, regions: RegionPair, sizes: ErrorSizes) -> None:
        self.state, self.facts = state, state.facts
        self.pair, self.row, self.regions, self.sizes = pair, row, regions, sizes
        alignment, matched = self.facts.alignment, ~self.facts.only_gives_alike  # calls that have a counterpart
        self.matched_a = frozenset(alignment.target[matched].tolist())
        self.matched_b = frozenset(alignment.reference[matched].tolist())

    def finding(self) -> Finding:
        """Return the first of the rules that applies."""
        lone = self._lone()
        if max(lone) >= 0:
            return self._of_lone(lone)
        if any(call in self.matched_a for call in self.regions.target.calls):
            return self._of_matched()
        return self._of_choice()

    # Calls that one side alone has ----------------------------------------------------------------------------------

    def _lone(self) -> LoneCall:
        """Return the calls, of one side alone, that would be named: the first of each side that computes."""
        facts, (side_a, side_b) = self.facts, self.state.sides
        calls_a = _uncleared(side_a, self.regions.target, self.matched_a)
        calls_b = _uncleared(side_b, self.regions.reference, self.matched_b)
        drawn_a, drawn_b = _drawing(facts, facts.flow_a, calls_a), _drawing(facts, facts.flow_b, calls_b)
        if bool(drawn_a) != bool(drawn_b):  # other calls may be another way to do the same; to draw is not
            calls_a, calls_b = drawn_a, drawn_b
        extra, missing = _first_computing(facts, facts.a, calls_a), _first_computing(facts, facts.b, calls_b)
        extra = _in_place_of(facts, facts.flow_a, calls_a, facts.flow_b, calls_b, extra)
        missing = _in_place_of(facts, facts.flow_b, calls_b, facts.flow_a, calls_a, missing)
        extra, missing = _forward_of(facts.a, extra, self.matched_a), _forward_of(facts.b, missing, self.matched_b)
        return self._other_move() or LoneCall(extra, missing)

    def _of_lone(self, lone: LoneCall) -> Finding:
        facts = self.facts
        first = self._pair_before(lone)
        if first >= 0:
            return facts.finding(DoesAnotherJob(), first, self.sizes)
        first = self._pair_of_other_layout()
        if first >= 0:
            return facts.finding(AnotherLayout(), first, self.sizes)
        return facts.lone_finding(lone, facts.target_name(self.pair), self.sizes, facts.slot(self.row))

    def _other_move(self) -> LoneCall | None:
        """Return two calls, one of each side alone, that move the elements of one tensor to other places.

        They make tensors of the same shape: `repeat` here and `repeat_interleave` there.
        """
        facts, (one_a, one_b) = self.facts, self.facts.sides
        moves_b = self._moves(one_b, self.regions.reference, self.matched_b)
        for a in self._moves(one_a, self.regions.target, self.matched_a):
            for b in moves_b:
                same_shape = facts.a.tensors.shape[a.made] == facts.b.tensors.shape[b.made]
                if same_shape and same_values(facts, a.given, b.given) and not same_values(facts, a.made, b.made):
                    return LoneCall(a.call, b.call)
        return None

    def _moves(self, one: OneSide, part: Region, matched: frozenset[int]) -> list[_Move]:
        """Return the moving calls, of one side alone, that stand at the entrance of a region."""
        found = []
        for call in part.calls:
            if call in matched or self.facts.rounding_class(one.side, call) != Rounding.MOVE:
                continue
            given = one.flow.inputs(call)
            if len(given) == 1 and given[0] in part.entrance:
                found += [_Move(given[0], made, call) for made in _results(one.flow, (call,)).tolist()]
        return found

    def _pair_before(self, lone: LoneCall) -> int:
        """Return the first pair that does another job from the same inputs, and runs before the lone calls."""
        facts, state = self.facts, self.state
        for call in self.regions.target.calls:
            if call not in self.matched_a:
                continue
            pair = facts.pair_of(call)
            _, reference = facts.calls(pair)
            runs_later = 0 <= lone.target < call or 0 <= lone.reference < reference
            given = facts.given(pair)
            same_inputs = bool(given) and all(facts.error(row) == 0 for row in given)
            inside = reference in self.regions.reference.calls
            if inside and not runs_later and same_inputs and call not in state.target.suspicions_of:
                return pair
        return -1

    def _pair_of_other_layout(self) -> int:
        """Return, where nothing but layouts is between, the pair at the entrance that lays out the same in another shape."""
        facts = self.facts
        for one, part in zip(facts.sides, self.regions):
            if any(facts.rounding_class(one.side, call) != Rounding.MOVE for call in part.calls):
                return -1
        for t in sorted(self.regions.target.frontier):
            r = int(self.state.counterpart[t])
            other_shape = facts.a.tensors.shape[t] != facts.b.tensors.shape[r]
            if r in self.regions.reference.frontier and other_shape:
                pair = facts.pair_of(int(facts.flow_a.producer[t]))
                if pair in facts.differences:
                    return pair
        return -1

    # Calls that have a counterpart ----------------------------------------------------------------------------------

    def _of_matched(self) -> Finding:
        facts = self.facts
        matched = [call for call in self.regions.target.calls if call in self.matched_a]
        first = facts.pair_of(_first_computing(facts, facts.a, matched))
        lone = lone_gradient(facts, first)
        if lone is not None:
            return facts.finding(GradientOnOneSide(lone.who), lone.pair, self.sizes, lone.slot)
        swapped = next((given for given in facts.given(first) if changed_places(facts, given)), None)
        if swapped is not None:
            return facts.finding(AnotherTensor(), first, self.sizes, facts.slot(swapped))
        return facts.finding(DoesAnotherJob(), first, self.sizes)

    # Regions without calls ------------------------------------------------------------------------------------------

    def _of_choice(self) -> Finding:
        """Return a finding where right calls made both tensors: one was written to, or is not the one that was meant."""
        facts = self.facts
        t, r = facts.tensors(self.row)
        slot = facts.slot(self.row)
        if facts.flow_a.producer[t] < 0 or facts.flow_b.producer[r] < 0:
            return facts.finding(UnrecordedWork(), self.pair, self.sizes, slot)
        name = facts.target_name(self.pair)
        writer = self._writer(t, r)
        if writer >= 0:
            return facts.finding(WritesInPlace(name), writer, self.sizes)
        choice = self._made_later(t, r) or self._last_choice(t, r)
        if choice is None:
            return facts.finding(AnotherTensor(), self.pair, self.sizes, slot)
        if min(choice) >= 0:
            return facts.finding(DoesAnotherJob(), facts.pair_of(choice.target), self.sizes)
        return facts.lone_finding(choice, name, self.sizes, slot)

    def _writer(self, t: int, r: int) -> int:
        """Return the pair of which one side alone writes into its input, where that is why the tensors differ, or -1."""
        facts, state = self.facts, self.state
        x, y = int(facts.flow_a.producer[t]), int(facts.flow_b.producer[r])
        for target, reference in ((x, int(state.target.partner[x])), (int(state.reference.partner[y]), y)):
            if target < 0 or reference < 0:
                continue
            kept = r in facts.flow_b.inputs(reference) if target == x else t in facts.flow_a.inputs(target)
            if kept and facts.a.writes_in_place(target) != facts.b.writes_in_place(reference):
                return facts.pair_of(target)
        return -1

    def _made_later(self, t: int, r: int) -> LoneCall | None:
        """Return the calls that made the two tensors, where a counterpart of theirs runs only after what is judged.

        A layer further on makes the reference's mask, too: here nothing does.
        """
        facts, state = self.facts, self.state
        if facts.has_inner_calls[self.pair] or facts.slots.role[self.row] == OUTPUT:
            return None  # what runs inside a call ends before it
        target, reference = facts.calls(self.pair)
        sides = (facts.flow_a, t, state.target.partner, reference), (facts.flow_b, r, state.reference.partner, target)
        if not any(partner[flow.producer[tensor]] > before for flow, tensor, partner, before in sides):
            return None
        parts = [
            region(flow, tensor, np.where(partner > before, -1, partner)) for flow, tensor, partner, before in sides
        ]
        extra, missing = (
            _first_computing(facts, flow.side, list(part.calls)) for (flow, *_), part in zip(sides, parts)
        )
        return LoneCall(extra, missing) if (extra < 0) != (missing < 0) else None

    def _last_choice(self, t: int, r: int) -> LoneCall | None:
        """Return the call that chose a tensor which an earlier call had made, if the other side has none like it.

        `alphas[0]` once more gives what the first gave: the flow leads to the first, which is right.
        """
        facts, state = self.facts, self.state
        one_a, one_b = facts.sides
        before_a, before_b = facts.calls(self.pair)
        x, y = _last_to_choose(one_a.flow, t, before_a), _last_to_choose(one_b.flow, r, before_b)
        if x >= 0 and state.target.partner[x] < 0:
            pair = int(one_a.pair_of[x])
            return LoneCall(x, int(one_b.calls[pair]) if pair >= 0 else -1)
        if y >= 0 and state.reference.partner[y] < 0:
            pair = int(one_b.pair_of[y])
            return LoneCall(int(one_a.calls[pair]) if pair >= 0 else -1, y)
        return None


def _uncleared(side: tuple[OneSide, SideState], part: Region, matched: frozenset[int]) -> list[int]:
    """Return the calls that one side alone has, without those that led to a right result before, if others are left.

    A mask, which the first layer used too, led to a right result; and so did calls of the same line in other layers.
    """
    one, status = side
    lone = [call for call in part.calls if call not in matched]
    for cleared in (status.cleared, status.like_cleared(one, lone)):
        lone = [call for call in lone if call not in cleared] or lone
    return lone


def _first_computing(facts: Facts, side: Side, calls: list[int]) -> int:
    """Return the first call that computes, else the first at all, -1 for none; a gradient's way is cut where it begins."""
    backward = side.book.code("backward")
    working = [x for x in calls if facts.rounding_class(side, x) not in IDLE or side.calls.phase[x] == backward]
    return min(working or calls, default=-1)


def _in_place_of(facts: Facts, flow: Flow, calls: list[int], other: Flow, theirs: list[int], first: int) -> int:
    """Return the call that stands in the place of the other side's only one: that which alone makes the same kind of tensor.

    The difference of two indices and its absolute value prepare for `ne`, which stands where the other side has `eq`.
    """
    only = [call for call in theirs if facts.rounding_class(other.side, call) not in IDLE]
    kinds = _kinds(facts, other, only[0]) if len(only) == 1 else set()
    alike = [x for x in calls if facts.rounding_class(flow.side, x) not in IDLE and _kinds(facts, flow, x) & kinds]
    return alike[0] if len(alike) == 1 else first


def _kinds(facts: Facts, flow: Flow, call: int) -> set[tuple[int, int]]:
    """Return the dtypes and shapes of what a call makes; both sides number them alike."""
    tensors = flow.side.tensors
    return {(int(tensors.dtype[x]), int(tensors.shape[x])) for x in flow.outputs(call)}


def _drawing(facts: Facts, flow: Flow, calls: list[int]) -> list[int]:
    """Return the calls that draw random numbers and have changed what they were given: no dropout of nothing."""
    found, side = [], flow.side
    for call in calls:
        here = slice(side.slots.start[call], side.slots.start[call + 1])
        tensors, given = side.slots.tensor[here], flow.role[here] != OUTPUT
        if facts.rounding_class(side, call) == Rounding.RANDOM and given.any():
            before, after = (side.tensors.hash[tensors[rows & (tensors >= 0)]] for rows in (given, ~given))
            if not np.isin(after, before).any():
                found.append(call)
    return found


def _forward_of(side: Side, call: int, matched: frozenset[int]) -> int:
    """Return the forward call of a backward call that one side alone has, where that is alone too: it ran first."""
    forward = int(side.calls.forward[call]) if call >= 0 and not side.calls.recompute[call] else -1
    return forward if forward >= 0 and forward not in matched else call


def _last_to_choose(flow: Flow, tensor: int, before: int) -> int:
    """Return the last call before another that has a tensor among its outputs and was not given it, -1 for none."""
    side, slots = flow.side, flow.side.slots
    rows = np.flatnonzero((slots.tensor >= 0) & (flow.role == OUTPUT))
    calls = slots.call[rows[flow.same[slots.tensor[rows]] == tensor]]
    earlier = calls[(calls < before) & (side.calls.children[calls] == 0)].tolist()
    return next((int(call) for call in sorted(earlier, reverse=True) if tensor not in flow.inputs(call)), -1)


# Narrowing ------------------------------------------------------------------------------------------------------------


def narrowed(state: State, row: int, regions: RegionPair, most: float = 1.0) -> RegionPair:
    """Return the regions behind the last intermediate results that both sides have, or that were made before.

    Whatever calls made them, results that both sides have bound a region, unless they differ by more than `most`; and so
    does a result that a corresponding call computed before from the same inputs.
    """
    facts = state.facts
    t, r = facts.tensors(row)
    inner_a, inner_b = _results(facts.flow_a, regions.target.calls), _results(facts.flow_b, regions.reference.calls)
    ends_a, ends_b = _in_both(facts, (t, r), inner_a, inner_b, most)
    ends_a |= _computed_before(facts, facts.flow_a, inner_a, state.target.partner) - {t}
    ends_b |= _computed_before(facts, facts.flow_b, inner_b, state.reference.partner) - {r}
    idle_a, idle_b = _idle(facts, inner_a, inner_b, regions)
    ends_a |= idle_a - {t}
    ends_b |= idle_b - {r}
    if not ends_a and not ends_b:
        return regions
    return RegionPair(
        region(facts.flow_a, t, state.target.partner, ends_a), region(facts.flow_b, r, state.reference.partner, ends_b)
    )


def _in_both(
    facts: Facts, but: tuple[int, int], inner_a: Ints, inner_b: Ints, most: float
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the results of two regions that are the same on both sides, besides the two that are not."""
    if not len(inner_a) or not len(inner_b) or len(inner_a) * len(inner_b) > _MOST_PAIRS:
        return frozenset(), frozenset()
    a, b = facts.a.tensors, facts.b.tensors
    place_a, place_b = np.nonzero(a.shape[inner_a][:, None] == b.shape[inner_b][None])
    x, y = inner_a[place_a], inner_b[place_b]
    telling = a.sketched[x] & b.sketched[y] & (a.min[x] < a.max[x])
    telling &= ~(filled(facts.a, x) | filled(facts.b, y))  # a mask's value hides the rest
    for one, other in ((a.nan, b.nan), (a.posinf, b.posinf), (a.neginf, b.neginf)):
        telling &= one[x] == other[y]  # sketches leave them out
    x, y = x[telling], y[telling]
    distance = np.linalg.norm(a.sketch[x] - b.sketch[y], axis=1)
    t, r = but
    same = (distance <= min(facts.same_result, most) * b.l2[y]) & ~((x == t) & (y == r))
    return frozenset(x[same].tolist()), frozenset(y[same].tolist())


def _computed_before(facts: Facts, flow: Flow, inner: Ints, partner: Ints) -> frozenset[int]:
    """Return the results of a region that a corresponding call computed before, of the same inputs to the bit.

    Something chosen twice (`levels[0]`) may be the wrong choice; something computed twice is only computed twice.
    """
    side, tensors, producer = flow.side, flow.side.tensors, flow.producer
    telling = tensors.measured & (tensors.min < tensors.max)
    inner = inner[telling[inner]]
    made = np.flatnonzero((producer >= 0) & (partner[producer] >= 0) & telling) if len(inner) else inner
    made = made[np.isin(tensors.hash[made], tensors.hash[inner])]
    first = {int(tensors.hash[x]): int(producer[x]) for x in made.tolist()[::-1]}
    found = set()
    for x in inner.tolist():
        here, before = int(producer[x]), first.get(int(tensors.hash[x]), len(partner))
        if before < here and side.calls.op[before] == side.calls.op[here]:
            earlier, later = (sorted(tensors.hash[flow.inputs(call)].tolist()) for call in (before, here))
            if earlier == later and facts.rounding_class(side, here) not in IDLE:
                found.add(x)
    return frozenset(found)


def _idle(facts: Facts, inner_a: Ints, inner_b: Ints, regions: RegionPair) -> tuple[frozenset[int], frozenset[int]]:
    """Return the results of two regions that are what a way into them is already: a mask, times ones.

    The calls up to there change nothing, so that they are not the cause. But where the counterpart of such a call changes
    what it is given (times ones here, times a half there), the two do not do the same.
    """
    target, reference = facts.sides
    idle_a = _unchanged(facts, facts.flow_a, inner_a, regions.target)
    idle_b = _unchanged(facts, facts.flow_b, inner_b, regions.reference)
    working_a = set(regions.target.calls) - {int(facts.flow_a.producer[x]) for x in idle_a}
    working_b = set(regions.reference.calls) - {int(facts.flow_b.producer[y]) for y in idle_b}
    return (
        frozenset(x for x in idle_a if _counterpart(target, x, reference) not in working_b),
        frozenset(y for y in idle_b if _counterpart(reference, y, target) not in working_a),
    )


def _counterpart(one: OneSide, tensor: int, other: OneSide) -> int:
    """Return the other side's call that is paired with the call that made a tensor, -1 for none."""
    pair = int(one.pair_of[one.flow.producer[tensor]])
    return int(other.calls[pair]) if pair >= 0 else -1


def _unchanged(facts: Facts, flow: Flow, inner: Ints, part: Region) -> set[int]:
    """Return the results of a region that are what a way into it is already."""
    side, tensors = flow.side, flow.side.tensors
    telling = tensors.sketched & (tensors.min < tensors.max)
    found = set()
    for x in inner[telling[inner]].tolist():
        entrance = np.array(
            [y for y in part.entrance if telling[y] and tensors.elements[y] == tensors.elements[x]], int
        )
        same = np.linalg.norm(tensors.sketch[entrance] - tensors.sketch[x], axis=1) == 0
        working = facts.rounding_class(side, int(flow.producer[x])) not in IDLE
        if working and same.any() and not filled(side, np.array([x])).any():
            found.add(x)
    return found


def _results(flow: Flow, calls: tuple[int, ...]) -> Ints:
    """Return the tensors that some calls made."""
    made = np.flatnonzero(np.isin(flow.producer, list(calls))) if calls else np.zeros(0, np.int64)
    return np.asarray(made[flow.same[made] == made])
