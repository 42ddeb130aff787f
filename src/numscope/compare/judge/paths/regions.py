"""Compares two tensors across the calls that lead to them and do not correspond.

From the same entrance, do both ways lead to the same tensor, but for rounding? If not, that is a suspicion; if the two
ways meet again further on (a scale applied before the product here, after it there), it is withdrawn.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from numscope.compare.align.slots import OUTPUT
from numscope.compare.judge.findings import FAILED, PLAIN, RIGHT, TAINTED, Status, Suspicion
from numscope.compare.judge.ledger import Ledger
from numscope.compare.judge.paths.dataflow import Region, region
from numscope.compare.judge.paths.region_cause import between_them, narrowed
from numscope.compare.judge.reasons import ExtraCall, OneSidedCall
from numscope.compare.judge.rounding import common_roundoff
from numscope.compare.judge.rules.gradients import forward_cause, further_use, raise_again
from numscope.compare.load.side import Side
from numscope.compare.measure.measures import RESOLUTION
from numscope.core.dtypes import unit_roundoff
from numscope.core.operators import IDLE, Rounding, Trait, names_with

_GROWTH = 24  # calls through which two ways may still meet again
_TELLING = 16  # elements: so many that agree do not do so by chance
_COARSE = 2.0**-9  # relative: below it, it may be a few roundings of float32 that cancellation has enlarged
_FADED = 0.05  # of an error: what is left of it where two ways meet again; an error that only fades is no agreement
_OF_ONE = 2e-3  # the same in a single number: a mean hides what is in its terms
_PLAINLY = 1e-2  # relative: what was off by more cannot fade to rounding on the way


def _gain(front: float) -> float:
    """Return by how much an error at the entrance may have grown at the end: one of a hundredth, what bf16 leaves, is an
    average over many roundings, and few ways enlarge it much."""
    return 32.0 if front < _COARSE else 16.0


class Regions:
    """Checks tensors that lie behind calls which only one side has."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def check(self, pair: int, row: int) -> Status:
        """Compare two tensors across the calls that lead to them and do not correspond."""
        ledger = self.ledger
        t, r = ledger.tensors(row)
        error = ledger.size(row)
        ahead = region(ledger.flow_a, t, ledger.partner_a)
        behind = region(ledger.flow_b, r, ledger.partner_b)
        entrance_a, entrance_b = (*ahead.frontier, *ahead.sources), (*behind.frontier, *behind.sources)
        wrong = [int(ledger.cause_a[x]) for x in entrance_a if ledger.wrong_a[x] and x != t]
        if wrong and self._is_refuted(pair, row, wrong, error):
            ledger.mark_right(t, r, error)
            return RIGHT, -1
        if wrong:
            return self._taint(t, r, error, wrong[0])
        if t in ahead.frontier and ledger.wrong_a[t]:
            return self._taint(t, r, error, int(ledger.cause_a[t]))
        if any(ledger.wrong_b[y] for y in entrance_b):
            return self._taint(t, r, error, ledger.first_cause())
        front = max([0.0, *(ledger.error_a[x] for x in entrance_a), *(ledger.error_b[y] for y in entrance_b)])
        explained = self._region_explains(pair, row, ahead, behind, front)
        causes = self._causes(ahead, behind)
        if error <= explained:
            faded = self._heal(pair, row, causes, error, explained - (_gain(front) - 2.0) * front, (ahead, behind))
            if faded is not None:
                return self._taint(t, r, error, faded)
            if ledger.is_telling(row):
                ledger.cleared_a.update(ahead.calls)
                ledger.cleared_b.update(behind.calls)
            ledger.mark_right(t, r, error)
            ledger.note_right(pair, error)
            return RIGHT, -1
        if ledger.history.diverged:
            return self._taint(t, r, error, -1)
        if causes:
            return self._fail_again(pair, row, causes, (ahead, behind), error)
        if (ledger.blind or ledger.phase(pair) in ("backward", "optimizer")) and ledger.anything_wrong():
            return self._taint(t, r, error, ledger.first_cause())
        between = bool(ahead.calls or behind.calls)
        if ledger.phase(pair) == "backward":
            if between:
                again = raise_again(ledger, pair)
                found = again if again is not None else further_use(ledger, pair, row, error, explained)
            else:
                found = forward_cause(ledger, pair, row, error, explained)
            if found is not None:
                return self._taint(t, r, error, found)
        finding = between_them(ledger, pair, row, (ahead, behind), (error, explained, front))
        return FAILED, ledger.suspect(finding, firm=False, at=pair)

    def _causes(self, ahead: Region, behind: Region) -> set[int]:
        """Return the suspicions that the calls of a region are under."""
        ledger = self.ledger
        causes = {cause for x in ahead.calls for cause in ledger.suspicions_of.get(x, ())}
        return causes | {cause for y in behind.calls for cause in ledger.suspicions_of_reference.get(y, ())}

    def _heal(
        self, pair: int, row: int, causes: set[int], error: float, near: float, regions: tuple[Region, Region]
    ) -> int | None:
        """Withdraw the suspicions that an agreement refutes; return one that it does not.

        Two ways that meet again do so at once; an error that only fades on the way is no agreement.
        """
        ledger = self.ledger
        # One number that agrees as far as bf16 or fp16 can tell, a loss, proves nothing.
        one = ledger.a.tensors.elements[ledger.slots.a[row]] == 1
        telling = ledger.is_telling(row) and not (one and near > 1e-4) and not self._hide(row, regions)
        for cause in sorted(causes):
            suspicion = ledger.suspicions[cause]
            faint = error > min(near, (_OF_ONE if one else _FADED) * min(1.0, suspicion.last))
            if suspicion.firm or (telling and faint and not self._is_cleared(suspicion, row, regions)):
                if suspicion.stands:
                    return cause
            elif telling:
                suspicion.healed_at = ledger.order(pair)
        return None

    def _is_refuted(self, pair: int, row: int, causes: list[int], error: float) -> bool:
        """Withdraw suspicions that had grown too old to be, where what is made from all that is plainly the same.

        Counts per expert of one token here and of all tokens there cannot agree; what comes of them does.
        """
        ledger = self.ledger
        t, r = ledger.tensors(row)
        roundoff = ledger.roundoff(t, r)
        plain = error <= PLAIN * roundoff and roundoff < 2.0**-20
        if not (plain and ledger.is_telling(row) and ledger.a.tensors.elements[t] >= _TELLING) or min(causes) < 0:
            return False
        suspicions = [ledger.suspicions[cause] for cause in causes]
        if any(suspicion.firm or not suspicion.last > _PLAINLY for suspicion in suspicions):
            return False
        for suspicion in suspicions:
            suspicion.healed_at = max(suspicion.healed_at, ledger.order(pair))
        return True

    def heal_by_bits(self) -> None:
        """Withdraw suspicions of calls that lead to a tensor which is the same to the bit on both sides.

        Calls that are identical are not visited one by one, so that this looks for them at the end.
        """
        ledger = self.ledger
        if all(suspicion.firm or not suspicion.stands for suspicion in ledger.suspicions):
            return
        slots = ledger.slots
        maker_a = ledger.flow_a.producer[ledger.flow_a.same[slots.a]]
        maker_b = ledger.flow_b.producer[ledger.flow_b.same[slots.b]]
        loose = (maker_a >= 0) & (maker_b >= 0) & (ledger.partner_a[maker_a] < 0) & (ledger.partner_b[maker_b] < 0)
        same = ledger.measures.bitwise[ledger.measures.row_of] & (slots.role != OUTPUT)
        for row in np.flatnonzero(loose & same).tolist():
            if not ledger.is_telling(row) or self._is_aside(int(maker_a[row]), int(maker_b[row])):
                continue
            t, r = ledger.tensors(row)
            ahead, behind = region(ledger.flow_a, t, ledger.partner_a), region(ledger.flow_b, r, ledger.partner_b)
            for cause in self._causes(ahead, behind) if not self._hide(row, (ahead, behind)) else ():
                suspicion = ledger.suspicions[cause]
                if self._is_gradient(int(maker_a[row])) and not self._is_gradient(suspicion.finding.target):
                    continue  # of a sum, or of a loss by its log-probabilities: it does not come of what they are
                suspicion.healed_at = max(suspicion.healed_at, ledger.order(int(slots.pair[row])))

    def _is_gradient(self, call: int) -> bool:
        side = self.ledger.a
        return call >= 0 and bool(side.calls.phase[call] == side.book.code("backward"))

    def _is_aside(self, target: int, reference: int) -> bool:
        """Return whether two calls that are paired make something else that differs: what is the same of them, a count beside
        a loss, does not come of all they are given."""
        ledger = self.ledger
        pair = ledger.pair_of(target)
        if pair < 0 or int(ledger.alignment.reference[pair]) != reference:
            return False
        return bool(ledger.errors.error_out[pair] > ledger.alike)

    def _hide(self, row: int, regions: tuple[Region, Region]) -> bool:
        """Return whether what was before cannot be told from a tensor: elements were divided by their own size on the way, as
        in Adam's first step, which is the same whatever the size of the gradients; or it is a choice (argmax)."""
        ledger = self.ledger
        chosen = not unit_roundoff(ledger.dtype(ledger.a, ledger.tensors(row)[0]))
        return any(
            side.book.words[side.calls.op[call]] in names_with(Trait.SIGN_LIKE)
            or (chosen and ledger.operator_class(side, call) == Rounding.DISCRETE)
            for side, part in ((ledger.a, regions[0]), (ledger.b, regions[1]))
            for call in part.calls
        )

    def _taint(self, t: int, r: int, error: float, cause: int) -> Status:
        self.ledger.mark_wrong(t, r, error, cause)
        return TAINTED, cause

    def _fail_again(
        self, pair: int, row: int, causes: set[int], regions: tuple[Region, Region], error: float
    ) -> Status:
        ledger = self.ledger
        cleared = {cause for cause in causes if self._is_cleared(ledger.suspicions[cause], row, regions)}
        blamed = causes - cleared or causes
        cause = min({one for one in blamed if ledger.suspicions[one].stands} or blamed)
        for other in cleared - {cause}:
            ledger.suspicions[other].healed_at = ledger.order(pair)
        suspicion = ledger.suspicions[cause]
        suspicion.failed_at = ledger.order(pair)
        suspicion.failures += 1
        suspicion.last = error
        finding = suspicion.finding
        if (
            suspicion.failures <= 4
            and not suspicion.firm
            and (not isinstance(finding.reason, ExtraCall) or cause in cleared)
        ):
            sizes = (finding.relative, finding.expected, finding.came_in)
            wider = between_them(ledger, pair, row, regions, sizes)
            # The reference lacks a call that the target has, before what first failed: another way to do it.
            extra, first = isinstance(wider.reason, ExtraCall), ledger.alignment.target[suspicion.at]
            if extra and wider.target < first and cause not in cleared:
                if isinstance(finding.reason, OneSidedCall):  # it shows where it first did
                    wider = replace(wider, reason=ExtraCall(finding.reason.shows_in), slot=finding.slot)
                suspicion.finding = wider
            elif cause in cleared:
                suspicion.finding = replace(wider, relative=error)
                suspicion.at = pair
        if len(regions[0].calls) > _GROWTH or suspicion.firm:
            t, r = ledger.tensors(row)
            return self._taint(t, r, error, cause)
        return FAILED, cause

    def _is_cleared(self, suspicion: Suspicion, row: int, regions: tuple[Region, Region]) -> bool:
        """Return whether the call that is blamed led to a result that both sides have, if by other calls."""
        if suspicion.firm:
            return False
        finding, (ahead, behind) = suspicion.finding, regions
        inner, outer = narrowed(self.ledger, row, regions, _FADED * suspicion.last)
        was_there = finding.target in ahead.calls or finding.reference in behind.calls
        return was_there and finding.target not in inner.calls and finding.reference not in outer.calls

    def _region_explains(self, pair: int, row: int, ahead: Region, behind: Region, front: float) -> float:
        """Return how far two ways from the same entrance may lead apart by rounding."""
        ledger = self.ledger
        t, r = ledger.tensors(row)
        active, coarse = 0, []
        for side, calls in ((ledger.a, ahead.calls), (ledger.b, behind.calls)):
            working = [x for x in calls if ledger.operator_class(side, x) not in IDLE]
            active += len(working)
            if working:
                coarse.append(max(self._roundoff_of(side, x) for x in working))
        end = ledger.roundoff(t, r)
        inner = common_roundoff(coarse, ledger.two_precisions)
        low = inner > 2.0**-20
        explained = (2.0 if low else 24.0) * np.sqrt(max(active, 1)) * inner + _gain(front) * front
        if ledger.coarse:
            explained *= 4.0  # other calls may stand between that were not recorded
        if end > 4 * inner and active:
            # The same numbers, rounded once more at the end: on one side alone, or a few of them the other way.
            alone = ledger.two_precisions and ledger.dtype(ledger.a, t) != ledger.dtype(ledger.b, r)
            explained += (2.0 if alone else 0.1) * end
        if ledger.two_precisions and not active and self._rounds_nothing_inside(ahead, behind):
            explained = max(explained, 4.0 * end)  # a cast computes nothing, and rounds; so did what it was given
        if front == 0 and ledger.scaled_error(row) > explained / 16.0:
            explained /= 16.0
        if ledger.measures.estimated[ledger.measures.row_of[row]]:
            explained += 32 * RESOLUTION
        if ledger.phase(pair) in ("backward", "optimizer"):
            explained = max(explained, 16.0 * ledger.worst_right["backward"], 16 * end)
        return float(explained)

    def _rounds_nothing_inside(self, ahead: Region, behind: Region) -> bool:
        """Return whether all casts of a region stand outside of any module: `model.bfloat16()`, and its data likewise; or
        are operators, among which autocast's own casts are."""
        sides, aten = ((self.ledger.a, ahead.calls), (self.ledger.b, behind.calls)), self.ledger.a.book.code("aten")
        return all(
            side.calls.parent[call] < 0 or side.calls.kind[call] == aten or not self._casts(side, call)
            for side, calls in sides
            for call in calls
        )

    @staticmethod
    def _casts(side: Side, call: int) -> bool:
        """Return whether a call has rounded numbers of more than one dtype."""
        tensors = side.slots.tensor[side.slots.start[call] : side.slots.start[call + 1]]
        dtypes = {side.book.words[code] for code in side.tensors.dtype[tensors[tensors >= 0]].tolist()}
        return sum(unit_roundoff(dtype) > 0 for dtype in dtypes) > 1

    def _roundoff_of(self, side: Side, call: int) -> float:
        """Return the unit roundoff in which a call computes: that of its outputs."""
        here = slice(side.slots.start[call], side.slots.start[call + 1])
        heads = [side.book.words[slot].startswith("output") for slot in side.slots.slot[here].tolist()]
        made = [x for x, is_made in zip(side.slots.tensor[here].tolist(), heads) if is_made and x >= 0]
        # Inside a module all may be in the run's own precision.
        inside = self.ledger.coarsest if side.calls.kind[call] == side.book.code("module") else 0.0
        return max([inside, *(unit_roundoff(side.book.words[side.tensors.dtype[x]]) for x in made)])
