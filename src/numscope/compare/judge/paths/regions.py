"""Compares two tensors across their regions: the calls that lead to them and do not correspond.

From the same entrance, do both ways lead to the same tensor, but for rounding? If not, that is a suspicion; if the two
ways meet again further on (a scale applied before the product here, after it there), it is withdrawn.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from numscope.compare.align.slots import OUTPUT
from numscope.compare.judge.findings import (
    NO_CAUSE,
    PLAIN_ROUNDING,
    RIGHT,
    ErrorSizes,
    Standing,
    Status,
    Suspicion,
)
from numscope.compare.judge.paths.dataflow import RegionPair, region
from numscope.compare.judge.paths.region_cause import narrowed, region_cause
from numscope.compare.judge.reasons import ExtraCall, OneSidedCall
from numscope.compare.judge.rounding.limits import common_roundoff
from numscope.compare.judge.rules.gradients import forward_cause, further_use, suspect_again
from numscope.compare.judge.state import State
from numscope.compare.load.side import Side
from numscope.compare.measure.measures import RESOLUTION
from numscope.core.dtypes import unit_roundoff
from numscope.core.operators import IDLE, Rounding, Trait, names_with

_MOST_CALLS = 24  # through which two ways may still meet again
_MOST_FAILURES = 4  # after which a suspicion's finding does not change any more
_TELLING_ELEMENTS = 16  # so many that agree do not do so by chance
_NARROW = 2.0**-20  # unit roundoff: of formats narrower than float32
_SMALL_FRONT = 2.0**-9  # relative: below it, it may be a few roundings of float32 that cancellation has enlarged
_FADED = 0.05  # of an error: what is left of it where two ways meet again; an error that only fades is no agreement
_FADED_NUMBER = 2e-3  # the same in a single number: a mean hides what is in its terms
_NEAR_NUMBER = 1e-4  # relative: a single number that agrees only so far, as bf16 or fp16 can tell, proves nothing
_PLAINLY = 1e-2  # relative: an error of more cannot fade to rounding on the way
_FACTOR_SHARE = 1 / 16  # of the limit: what a wrong factor, from the same entrance, is held to


def _gain(front: float) -> float:
    """Return by how much an error at the entrance may have grown at the end.

    An error of a hundredth, as bf16 leaves it, is an average over many roundings, and few ways enlarge it much.
    """
    return 32.0 if front < _SMALL_FRONT else 16.0


class RegionCheck:
    """Checks tensors that lie behind calls which do not correspond."""

    def __init__(self, state: State) -> None:
        self.facts, self.state = state.facts, state

    def check(self, pair: int, row: int) -> Status:
        """Compare the two tensors of a slot across the calls that lead to them and do not correspond."""
        facts, state = self.facts, self.state
        t, r = facts.tensors(row)
        error = facts.error_or_zero(row)
        regions = self.regions(t, r)
        wrong = [int(state.target.cause[x]) for x in regions.target.entrance if state.target.wrong[x] and x != t]
        if wrong and self._refutes(pair, row, wrong, error):
            state.mark_right(t, r, error)
            return RIGHT
        if wrong:
            return self._taint(t, r, error, wrong[0])
        if t in regions.target.frontier and state.target.wrong[t]:
            return self._taint(t, r, error, int(state.target.cause[t]))
        if any(state.reference.wrong[y] for y in regions.reference.entrance):
            return self._taint(t, r, error, state.first_cause())
        front = self._front(regions)
        explained = self._explained(pair, row, regions, front)
        causes = self._causes(regions)
        if error <= explained:
            near = explained - (_gain(front) - 2.0) * front
            stays = self._withdraw(pair, row, causes, error, near, regions)
            if stays is not None:
                return self._taint(t, r, error, stays)
            if facts.is_telling(row):
                state.clear(regions.target.calls, regions.reference.calls)
            state.mark_right(t, r, error)
            state.note_rounding(pair, error)
            return RIGHT
        if state.history.diverged:
            return self._taint(t, r, error, NO_CAUSE)
        if causes:
            return self._fail_again(pair, row, causes, regions, error)
        phase = facts.phase(pair)
        if (facts.inputs_unrecorded or phase in ("backward", "optimizer")) and state.anything_wrong():
            return self._taint(t, r, error, state.first_cause())
        if phase == "backward":
            cause = self._forward_cause(pair, row, regions, ErrorSizes(error, explained))
            if cause is not None:
                return self._taint(t, r, error, cause)
        finding = region_cause(state, pair, row, regions, ErrorSizes(error, explained, front))
        return Status(Standing.UNEXPLAINED, state.suspect(finding, firm=False, at=pair))

    def regions(self, t: int, r: int) -> RegionPair:
        """Return the calls that lead to two tensors and do not correspond."""
        facts, state = self.facts, self.state
        return RegionPair(
            region(facts.flow_a, t, state.target.partner), region(facts.flow_b, r, state.reference.partner)
        )

    def _front(self, regions: RegionPair) -> float:
        """Return the largest error at the entrance."""
        state = self.state
        errors_a = (state.target.error[x] for x in regions.target.entrance)
        errors_b = (state.reference.error[y] for y in regions.reference.entrance)
        return float(max([0.0, *errors_a, *errors_b]))

    def _causes(self, regions: RegionPair) -> set[int]:
        """Return the suspicions that the calls of two regions are under."""
        return {
            cause
            for (_, status), part in zip(self.state.sides, regions)
            for call in part.calls
            for cause in status.suspicions_of.get(call, ())
        }

    def _taint(self, t: int, r: int, error: float, cause: int) -> Status:
        self.state.mark_wrong(t, r, error, cause)
        return Status(Standing.TAINTED, cause)

    def _forward_cause(self, pair: int, row: int, regions: RegionPair, sizes: ErrorSizes) -> int | None:
        """Return the suspicion of a forward call for a gradient that is off."""
        state = self.state
        if not (regions.target.calls or regions.reference.calls):
            return forward_cause(state, pair, row, sizes)
        again = suspect_again(state, pair)
        return again if again is not None else further_use(state, pair, row, sizes)

    # Agreement ------------------------------------------------------------------------------------------------------

    def _withdraw(
        self, pair: int, row: int, causes: set[int], error: float, near: float, regions: RegionPair
    ) -> int | None:
        """Withdraw the suspicions that an agreement refutes; return one that it does not.

        Two ways that meet again do so at once; an error that only fades on the way is no agreement.
        """
        facts = self.facts
        is_number = facts.a.tensors.elements[facts.slots.a[row]] == 1
        proves = not (is_number and near > _NEAR_NUMBER) and not self._hides_size(row, regions)
        telling = facts.is_telling(row) and proves
        for cause in sorted(causes):
            suspicion = self.state.suspicions[cause]
            faded = (_FADED_NUMBER if is_number else _FADED) * min(1.0, suspicion.last_error)
            faint = error > min(near, faded)
            if suspicion.firm or (telling and faint and not self._is_cleared(suspicion, row, regions)):
                if suspicion.stands:
                    return cause
            elif telling:
                suspicion.withdraw(facts.order(pair))
        return None

    def _refutes(self, pair: int, row: int, causes: list[int], error: float) -> bool:
        """Withdraw suspicions of wrong tensors if a tensor made from all of them is plainly the same.

        Counts per expert of one token here and of all tokens there cannot agree; what comes of them does.
        """
        facts = self.facts
        t, r = facts.tensors(row)
        roundoff = facts.roundoff(t, r)
        plain = error <= PLAIN_ROUNDING * roundoff and roundoff < _NARROW
        telling = facts.is_telling(row) and facts.a.tensors.elements[t] >= _TELLING_ELEMENTS
        if not (plain and telling) or min(causes) < 0:
            return False
        suspicions = [self.state.suspicions[cause] for cause in causes]
        if any(suspicion.firm or not suspicion.last_error > _PLAINLY for suspicion in suspicions):
            return False
        for suspicion in suspicions:
            suspicion.withdraw(facts.order(pair))
        return True

    def withdraw_by_bits(self) -> None:
        """Withdraw suspicions of calls that lead to a tensor which is the same to the bit on both sides.

        Calls that are identical are not visited one by one, so that this looks for them at the end.
        """
        facts, state, slots = self.facts, self.state, self.facts.slots
        if all(suspicion.firm or not suspicion.stands for suspicion in state.suspicions):
            return
        producer_a = facts.flow_a.producer[facts.flow_a.same[slots.a]]
        producer_b = facts.flow_b.producer[facts.flow_b.same[slots.b]]
        lone = (state.target.partner[producer_a] < 0) & (state.reference.partner[producer_b] < 0)
        behind_region = (producer_a >= 0) & (producer_b >= 0) & lone
        same = facts.measures.bitwise[facts.measures.row_of] & (slots.role != OUTPUT)
        for row in np.flatnonzero(behind_region & same).tolist():
            if not facts.is_telling(row) or self._is_beside_error(int(producer_a[row]), int(producer_b[row])):
                continue
            regions = self.regions(*facts.tensors(row))
            for cause in self._causes(regions) if not self._hides_size(row, regions) else ():
                suspicion = state.suspicions[cause]
                if self._is_gradient(int(producer_a[row])) and not self._is_gradient(suspicion.finding.target):
                    continue  # the gradient of a sum, or of a loss by its log-probabilities, does not depend on them
                suspicion.withdraw(facts.order(int(slots.pair[row])))

    def _is_gradient(self, call: int) -> bool:
        side = self.facts.a
        return call >= 0 and bool(side.calls.phase[call] == side.book.code("backward"))

    def _is_beside_error(self, target: int, reference: int) -> bool:
        """Return whether two calls that are paired also make something that differs.

        A result that agrees, a count beside a loss, then does not depend on all their inputs.
        """
        facts = self.facts
        pair = facts.pair_of(target)
        if pair < 0 or facts.calls(pair) != (target, reference):
            return False
        return bool(facts.errors.error_out[pair] > facts.same_result)

    def _hides_size(self, row: int, regions: RegionPair) -> bool:
        """Return whether a tensor says little of those before its region.

        Elements were divided by their own size on the way, as in Adam's first step, which is the same whatever the size
        of the gradients; or it is a choice (argmax).
        """
        facts = self.facts
        is_choice = not unit_roundoff(facts.dtype(facts.a, facts.tensors(row)[0]))
        return any(
            one.side.book.words[one.side.calls.op[call]] in names_with(Trait.SIGN_LIKE)
            or (is_choice and facts.rounding_class(one.side, call) == Rounding.DISCRETE)
            for one, part in zip(facts.sides, regions)
            for call in part.calls
        )

    # Disagreement ---------------------------------------------------------------------------------------------------

    def _fail_again(self, pair: int, row: int, causes: set[int], regions: RegionPair, error: float) -> Status:
        """Blame the suspicions that a region is under for one more tensor that is off."""
        facts, state = self.facts, self.state
        cleared = {cause for cause in causes if self._is_cleared(state.suspicions[cause], row, regions)}
        blamed = causes - cleared or causes
        cause = min({one for one in blamed if state.suspicions[one].stands} or blamed)
        for other in cleared - {cause}:
            state.suspicions[other].withdraw(facts.order(pair))
        suspicion = state.suspicions[cause]
        suspicion.fail(facts.order(pair), error)
        may_change = suspicion.failures <= _MOST_FAILURES and not suspicion.firm
        is_extra = isinstance(suspicion.finding.reason, ExtraCall)
        if may_change and (not is_extra or cause in cleared):
            self._blame_wider(suspicion, pair, row, regions, cause in cleared, error)
        if len(regions.target.calls) > _MOST_CALLS or suspicion.firm:
            return self._taint(*facts.tensors(row), error, cause)
        return Status(Standing.UNEXPLAINED, cause)

    def _blame_wider(
        self, suspicion: Suspicion, pair: int, row: int, regions: RegionPair, is_cleared: bool, error: float
    ) -> None:
        """Let a suspicion be of another call, now that it is known which further tensor is off."""
        finding = suspicion.finding
        wider = region_cause(self.state, pair, row, regions, finding.sizes)
        # The reference lacks a call that the target has, before the first failure: another way to do it.
        is_earlier = wider.target < self.facts.alignment.target[suspicion.at]
        if isinstance(wider.reason, ExtraCall) and is_earlier and not is_cleared:
            if isinstance(finding.reason, OneSidedCall):  # keep the place where it showed first
                wider = replace(wider, reason=ExtraCall(finding.reason.shows_in), slot=finding.slot)
            suspicion.finding = wider
        elif is_cleared:
            suspicion.finding, suspicion.at = replace(wider, relative=error), pair

    def _is_cleared(self, suspicion: Suspicion, row: int, regions: RegionPair) -> bool:
        """Return whether the call that is blamed led to a result that both sides have, if by other calls."""
        if suspicion.firm:
            return False
        finding = suspicion.finding
        inner = narrowed(self.state, row, regions, _FADED * suspicion.last_error)
        was_inside = finding.target in regions.target.calls or finding.reference in regions.reference.calls
        is_inside = finding.target in inner.target.calls or finding.reference in inner.reference.calls
        return was_inside and not is_inside

    # Rounding -------------------------------------------------------------------------------------------------------

    def _explained(self, pair: int, row: int, regions: RegionPair, front: float) -> float:
        """Return how far two ways from the same entrance may lead apart by rounding."""
        facts = self.facts
        t, r = facts.tensors(row)
        active, roundoffs = 0, []
        for one, part in zip(facts.sides, regions):
            working = [call for call in part.calls if facts.rounding_class(one.side, call) not in IDLE]
            active += len(working)
            telling = [call for call in working if not self._is_opaque(one.side, call)]
            if telling:
                roundoffs.append(max(self._roundoff_of(one.side, call) for call in telling))
        end = facts.roundoff(t, r)
        inner = common_roundoff(roundoffs or [end] * (active > 0), facts.two_precisions)
        explained = (2.0 if inner > _NARROW else 24.0) * np.sqrt(max(active, 1)) * inner + _gain(front) * front
        if facts.modules_only:
            explained *= 4.0  # other calls may stand between that were not recorded
        if end > 4 * inner and active:
            # The same numbers, rounded once more at the end: on one side alone, or a few of them the other way.
            alone = facts.two_precisions and facts.dtype(facts.a, t) != facts.dtype(facts.b, r)
            explained += (2.0 if alone else 0.1) * end
        if facts.two_precisions and not active and self._casts_outside_modules(regions):
            explained = max(explained, 4.0 * end)  # a cast computes nothing, and rounds; so did its input
        if front == 0 and facts.scaled_error(row) > explained * _FACTOR_SHARE:
            explained *= _FACTOR_SHARE
        if facts.measures.estimated[facts.measures.row_of[row]]:
            explained += 32 * RESOLUTION
        if facts.phase(pair) in ("backward", "optimizer"):
            explained = max(explained, 16.0 * self.state.rounding["backward"], 16 * end)
        return float(explained)

    def _casts_outside_modules(self, regions: RegionPair) -> bool:
        """Return whether all casts of a region stand outside of any module, or are operators.

        `model.bfloat16()`, and its data likewise, is outside; autocast's own casts are operators.
        """
        aten = self.facts.a.book.code("aten")
        return all(
            one.side.calls.parent[call] < 0 or one.side.calls.kind[call] == aten or not _casts(one.side, call)
            for one, part in zip(self.facts.sides, regions)
            for call in part.calls
        )

    def _is_opaque(self, side: Side, call: int) -> bool:
        """Return whether nothing says in which dtypes a call computes: a module of whose inside no call was recorded.

        It is compiled, scripted, or a kernel of its own; what it rounds is what the other side's calls in its place do.
        """
        is_module = side.calls.kind[call] == side.book.code("module")
        return bool(is_module and side.calls.children[call] == 0 and not self.facts.modules_only)

    def _roundoff_of(self, side: Side, call: int) -> float:
        """Return the unit roundoff in which a call computes: that of its outputs."""
        here = slice(side.slots.start[call], side.slots.start[call + 1])
        heads = [side.book.words[slot].startswith("output") for slot in side.slots.slot[here].tolist()]
        made = [x for x, is_made in zip(side.slots.tensor[here].tolist(), heads) if is_made and x >= 0]
        # Inside a module all may be in the run's own precision.
        inside = self.facts.coarser_roundoff if side.calls.kind[call] == side.book.code("module") else 0.0
        return max([inside, *(unit_roundoff(side.book.words[side.tensors.dtype[x]]) for x in made)])


def _casts(side: Side, call: int) -> bool:
    """Return whether a call has rounded numbers of more than one dtype."""
    tensors = side.slots.tensor[side.slots.start[call] : side.slots.start[call + 1]]
    dtypes = {side.book.words[code] for code in side.tensors.dtype[tensors[tensors >= 0]].tolist()}
    return sum(unit_roundoff(dtype) > 0 for dtype in dtypes) > 1
