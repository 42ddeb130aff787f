"""Verdicts: which calls are identical, equivalent, inherited, and which are the origin.

The calls of a step are visited in the order in which they ran. Each is judged by what it did to the error that came
in: more than rounding explains, from right inputs, is an origin; what follows from a wrong input is inherited. An
input that is wrong though whatever made it was right points at what stands between (provenance.py).
docs/explanation/verdicts.md gives the rule with its reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from numscope.compare.align import Alignment
from numscope.compare.arguments import Difference
from numscope.compare.ledger import (
    EQUIVALENT,
    IDENTICAL,
    INHERITED,
    ORIGIN,
    VERDICTS,
    Finding,
    History,
    Ledger,
    or_zero,
)
from numscope.compare.measure import Measures
from numscope.compare.noise import CallErrors
from numscope.compare.provenance import FAILED, RIGHT, TAINTED, Provenance
from numscope.compare.side import Flags, Floats, Ints, Side
from numscope.compare.slots import OUTPUT, SlotPairs
from numscope.compare.updates import judge_optimizer

__all__ = ["VERDICTS", "Finding", "History", "Judgement", "judge"]


@dataclass(frozen=True)
class Judgement:
    """The verdict on every pair of calls of one step of one rank."""

    verdict: Ints
    errors: CallErrors
    limits: Floats
    differences: dict[int, list[Difference]]
    findings: list[Finding]
    reasons: dict[int, str]
    slot_wrong: Flags


def judge(
    a: Side,
    b: Side,
    alignment: Alignment,
    slots: SlotPairs,
    measures: Measures,
    history: History,
    two_precisions: bool = False,
    noise: Floats | None = None,
    scale: float = 1.0,
) -> Judgement:
    """Judge every pair of calls of one step of one rank."""
    ledger = Ledger(a, b, alignment, slots, measures, history, two_precisions)
    judgement = _Walk(ledger, ledger.limits(scale, noise)).run()
    history.started = True
    history.diverged = history.diverged or bool(judgement.findings)
    history.noise = max(history.noise, *ledger.worst_right.values())
    return judgement


class _Walk:
    """Visits the pairs of calls in the order in which they ran."""

    def __init__(self, ledger: Ledger, limits: Floats) -> None:
        self.ledger, self.limits = ledger, limits
        self.provenance = Provenance(ledger)
        parent = ledger.a.calls.parent[ledger.alignment.target]
        self.inner: dict[int, list[int]] = {}
        for pair in np.flatnonzero(parent >= 0).tolist():
            self.inner.setdefault(int(parent[pair]), []).append(pair)
        self.uses = np.zeros(len(ledger.a.tensors.hash), np.int64)
        given = (ledger.flow_a.role != OUTPUT) & (ledger.a.slots.tensor >= 0)
        np.add.at(self.uses, ledger.a.slots.tensor[given], 1)

    def run(self) -> Judgement:
        ledger = self.ledger
        for pair, is_end in self._events():
            kind = ledger.kind(pair)
            if kind == "data":
                self._judge_data(pair)
            elif kind == "optimizer":
                judge_optimizer(ledger, self.provenance, pair)
            elif not ledger.composite[pair]:
                self._judge_leaf(pair)
            elif is_end:
                self._judge_outer(pair)
            else:
                for row in ledger.given(pair):
                    self.provenance.check(pair, row)
        self.provenance.heal_by_bits()
        findings = self._settle()
        return Judgement(
            ledger.verdict, ledger.errors, self.limits, ledger.differences, findings, {}, ledger.slot_wrong()
        )

    def _events(self) -> list[tuple[int, bool]]:
        """Return the pairs that are not identical, in order; a call with inner calls comes again after those."""
        ledger = self.ledger
        interesting = ~ledger.errors.identical
        interesting[list(ledger.differences)] = True
        if not interesting.any():
            return []
        last = list(range(len(ledger.a.calls)))
        parents = ledger.a.calls.parent.tolist()
        for row in range(len(last) - 1, -1, -1):
            if (parent := parents[row]) >= 0 and last[row] > last[parent]:
                last[parent] = last[row]
        events: list[tuple[float, int, bool]] = []
        for pair in np.flatnonzero(interesting).tolist():
            row = int(ledger.alignment.target[pair])
            events.append((float(row), pair, False))
            if ledger.composite[pair]:
                events.append((last[row] + 0.5 - row * 1e-9, pair, True))
        events.sort()
        return [(pair, is_end) for _, pair, is_end in events]

    # Data -----------------------------------------------------------------------------------------------------------

    def _judge_data(self, pair: int) -> None:
        ledger = self.ledger
        row_of_call = int(ledger.alignment.target[pair])
        for row in ledger.rows(pair):
            error = ledger.error(row)
            t, r = ledger.tensors(row)
            if error == 0:
                continue
            made_earlier = ledger.flow_a.producer[t] not in (-1, row_of_call)
            if made_earlier:
                status, cause = self.provenance.check(pair, row)
                if status != RIGHT:
                    ledger.verdict[pair] = INHERITED
                    ledger.cause_of[pair] = cause
                continue
            explained = 4 * ledger.roundoff(t, r)
            if error <= explained:
                ledger.mark_right(t, r, error)
                ledger.note_right(pair, error)
                continue
            if ledger.history.diverged:
                ledger.mark_wrong(t, r, ledger.size(row), -1)
                ledger.verdict[pair] = INHERITED
            else:
                size = float("inf") if np.isnan(error) else error
                cause = ledger.find("data", pair, size, explained, 0.0, slot=ledger.slot(row))
                ledger.mark_wrong(t, r, size, cause)
                ledger.verdict[pair] = ORIGIN

    # Calls without inner calls ----------------------------------------------------------------------------------------

    def _judge_leaf(self, pair: int) -> None:
        ledger = self.ledger
        statuses = [self.provenance.check(pair, row) for row in ledger.given(pair)]
        failed = next((cause for status, cause in statuses if status == FAILED), None)
        tainted = next((cause for status, cause in statuses if status == TAINTED), None)
        if tainted is None and failed is None:
            tainted = self._hidden_taint(pair)
        out = float(ledger.errors.error_out[pair])
        came_in = max(or_zero(ledger.errors.error_in[pair]), or_zero(ledger.errors.error_state[pair]))
        carried = self._carried(pair)
        if tainted is not None:
            self._inherit(pair, tainted, out)
        elif failed is not None and out == 0 and any(ledger.is_telling(row) for row in ledger.made(pair)):
            ledger.suspicions[failed].healed_at = ledger.order(pair) + 0.5
        elif failed is not None:
            ledger.loosen(pair, failed)
            ledger.verdict[pair] = INHERITED
            ledger.cause_of[pair] = failed
            self._check_ends(pair)
        elif not ledger.solid[pair]:
            self._check_ends(pair)
        elif np.isnan(out) or (out <= self._limit(pair, came_in, carried) and not self._is_scaled(pair, came_in)):
            for row in ledger.made(pair):
                error = ledger.error(row)
                ledger.mark_right(*ledger.tensors(row), max(came_in, carried) if np.isnan(error) else error)
            ledger.note_right(pair, out)
            self._remember_arguments(pair, out)
        else:
            blamed, slot = (self._unseen(pair) if came_in == 0 else None) or (pair, "")
            kind = "gap" if slot else "call"
            cause = ledger.find(kind, blamed, out, float(self.limits[pair]), came_in, slot=slot)
            ledger.cause_of[pair] = ledger.cause_of[blamed] = cause
            ledger.verdict[pair] = INHERITED
            ledger.verdict[blamed] = ORIGIN
            self._mark_made(pair, cause)

    def _unseen(self, pair: int) -> tuple[int, str] | None:
        """Return the pair that first made what differs by an unknown amount, though it was given the same; or the one
        that was first given it, and its slot, where nothing recorded made it."""
        ledger = self.ledger
        for row in ledger.given(pair):
            if not np.isnan(ledger.error(row)):
                continue
            t = ledger.tensors(row)[0]
            if ledger.flow_a.producer[t] < 0:
                first = int(np.flatnonzero(ledger.flow_a.same[ledger.slots.a] == t)[0])
                return int(ledger.slots.pair[first]), ledger.slot(first)
            for maker in np.flatnonzero(ledger.alignment.target == ledger.flow_a.producer[t]).tolist():
                earlier = self._unseen(maker)
                if earlier is not None:
                    return earlier
                given = np.fmax(ledger.errors.error_in[maker], ledger.errors.error_state[maker])
                if ledger.solid[maker] and not np.nan_to_num(given, posinf=1.0) > 0:
                    return int(maker), ""
        return None

    def _hidden_taint(self, pair: int) -> int | None:
        """Return the cause if something wrong reaches a call other than through its paired inputs."""
        ledger = self.ledger
        target = int(ledger.alignment.target[pair])
        forward = int(ledger.a.calls.forward[target])
        held: list[int] = []
        if (
            forward >= 0 and ledger.phase(pair) == "backward"
        ):  # a backward call also reads what its forward call was given and made
            here = slice(ledger.a.slots.start[forward], ledger.a.slots.start[forward + 1])
            held += [int(ledger.flow_a.same[t]) for t in ledger.a.slots.tensor[here].tolist() if t >= 0]
        if not ledger.given(pair):
            held += ledger.flow_a.inputs(target)
        return next((int(ledger.cause_a[t]) for t in held if t >= 0 and ledger.wrong_a[t]), None)

    def _inherit(self, pair: int, cause: int, out: float) -> None:
        ledger = self.ledger
        # No cancellation excuses what follows from something wrong: only what is as small as plain rounding is right again.
        if np.isnan(out) or out > min(float(ledger.errors.floor[pair]), 16 * float(ledger.errors.roundoff[pair])):
            ledger.verdict[pair] = INHERITED
            ledger.cause_of[pair] = cause
            self._mark_made(pair, cause)

    def _mark_made(self, pair: int, cause: int) -> None:
        ledger = self.ledger
        for row in ledger.made(pair):
            if ledger.error(row) != 0:
                ledger.mark_wrong(*ledger.tensors(row), ledger.size(row), cause)

    def _check_ends(self, pair: int) -> None:
        """Judge what a pair that does not do the same job made, where nothing recorded uses it."""
        ledger = self.ledger
        for row in ledger.made(pair) if ledger.phase(pair) == "forward" else ():
            t, _ = ledger.tensors(row)
            if (
                self.uses[t] == 0
                and ledger.error(row) != 0
                and ledger.flow_a.producer[t] == ledger.alignment.target[pair]
            ):
                status, cause = self.provenance.check_region(pair, row)
                if status != RIGHT:
                    ledger.verdict[pair] = INHERITED
                    ledger.cause_of[pair] = cause

    def _carried(self, pair: int) -> float:
        """Return the error of inputs that cannot be measured themselves, as it was on the way to them."""
        ledger = self.ledger
        unknown = [ledger.tensors(row)[0] for row in ledger.given(pair) if np.isnan(ledger.error(row))]
        return max((float(ledger.error_a[t]) for t in unknown), default=0.0)

    def _limit(self, pair: int, came_in: float, carried: float) -> float:
        """Return the error that is explained, lowered where there is other evidence that the two compute differently."""
        ledger = self.ledger
        limit = float(self.limits[pair] + ledger.errors.gain[pair] * carried)
        came_in = max(came_in, carried)
        if any(difference.telling for difference in ledger.differences.get(pair, ())):
            # With arguments that differ, only the error that came in is an excuse, not the call's own rounding.
            return min(limit, 2.0 * came_in)
        return limit

    def _is_scaled(self, pair: int, came_in: float) -> bool:
        """Return whether, from the same inputs, the outputs differ by a factor that is none of rounding's."""
        ledger = self.ledger
        least = float(self.limits[pair]) / 16.0
        return came_in == 0.0 and any(ledger.scaled_error(row) > least for row in ledger.made(pair))

    def _remember_arguments(self, pair: int, error: float) -> None:
        """Keep a call whose arguments differ without effect on its outputs: it may change state that shows later."""
        ledger = self.ledger
        told = tuple(ledger.differences.get(pair, ()))
        if not any(difference.telling for difference in told):
            return
        row = int(ledger.alignment.target[pair])
        reference = int(ledger.alignment.reference[pair])
        finding = Finding(
            "call",
            pair,
            row,
            reference,
            ledger.a.step,
            ledger.a.rank,
            float(row),
            error,
            0.0,
            0.0,
            told,
            note="on state",
        )
        module = ledger.a.calls.module[row]
        path = ledger.a.book.words[module] if module >= 0 else ""
        for name in ("running_mean", "running_var"):
            ledger.history.arguments.setdefault(f"buffers.{path}.{name}" if path else f"buffers.{name}", finding)

    # Calls with inner calls -------------------------------------------------------------------------------------------

    def _judge_outer(self, pair: int) -> None:
        """Judge a call with inner calls: they explain it, or what stands between them does."""
        ledger = self.ledger
        inside = self.inner.get(int(ledger.alignment.target[pair]), [])
        cause = next((ledger.cause_of[p] for p in inside if p in ledger.cause_of), None)
        for row in ledger.given(pair):
            status, why = self.provenance.check(pair, row)
            if status != RIGHT and cause is None:
                cause = why
        for row in ledger.made(pair):
            found = self._check_made(pair, row, inside, cause)
            cause = found if cause is None else cause
        if cause is not None and not ledger.errors.identical[pair]:
            own = cause >= 0 and ledger.suspicions[cause].finding.pair == pair
            ledger.verdict[pair] = ORIGIN if own else INHERITED
            ledger.cause_of[pair] = cause

    def _check_made(self, pair: int, row: int, inside: list[int], cause: int | None) -> int | None:
        ledger = self.ledger
        t, r = ledger.tensors(row)
        error = ledger.error(row)
        if error == 0 or np.isnan(error):
            return None
        if ledger.wrong_a[t]:
            return int(ledger.cause_a[t])
        maker_a, maker_b = int(ledger.flow_a.producer[t]), int(ledger.flow_b.producer[r])
        own = (int(ledger.alignment.target[pair]), int(ledger.alignment.reference[pair]))
        if maker_a not in (-1, own[0]) or maker_b not in (-1, own[1]):
            if ledger.known[t] == r:
                return None
            status, why = self.provenance.check(pair, row)
            return None if status == RIGHT else why
        # The call's own work, beyond its inner calls: the sum of gradients, or something that was not recorded.
        front = max([0.0, *(or_zero(ledger.errors.error_out[p]) for p in inside)])
        front = max(front, or_zero(ledger.errors.error_in[pair]))
        if ledger.phase(pair) == "backward":
            front = max(front, ledger.worst_right["backward"], ledger.history.noise)
        explained = 32 * ledger.roundoff(t, r) + 32 * front
        if ledger.phase(pair) == "backward":
            explained = max(explained, or_zero(ledger.errors.floor[pair]))
        if error <= explained:
            return None
        if cause is None and not ledger.anything_wrong():
            cause = ledger.find("call", pair, error, explained, front, slot=ledger.slot(row), note="inner calls agree")
        elif cause is None:
            cause = next((number for number, one in enumerate(ledger.suspicions) if one.stands), -1)
        ledger.mark_wrong(t, r, error, cause)
        return cause

    # The end ----------------------------------------------------------------------------------------------------------

    def _settle(self) -> list[Finding]:
        """Withdraw what healed, name the outermost API whose arguments differ, and return what is left, in order."""
        ledger = self.ledger
        findings = []
        for pair, cause in ledger.cause_of.items():
            if cause >= 0 and not ledger.suspicions[cause].stands:
                ledger.verdict[pair] = EQUIVALENT if not ledger.errors.identical[pair] else IDENTICAL
        for suspicion in ledger.suspicions:
            if suspicion.stands:
                finding = self._outermost(suspicion.finding)
                findings.append(finding)
                if finding.pair >= 0 and finding.step == ledger.a.step and finding.ready is None:
                    ledger.verdict[finding.pair] = ORIGIN
        self._nest(findings)
        return sorted(findings, key=lambda finding: finding.order)

    def _outermost(self, finding: Finding) -> Finding:
        ledger = self.ledger
        if finding.kind != "call" or finding.pair < 0 or finding.ready is not None:
            return finding
        pair_of = {int(row): pair for pair, row in enumerate(ledger.alignment.target.tolist())}
        row = int(ledger.a.calls.parent[finding.target])
        api = ledger.a.book.code("api")
        while row >= 0 and ledger.a.calls.kind[row] == api:
            outer = pair_of.get(row)
            if outer is not None and outer in ledger.differences:
                ledger.verdict[finding.pair] = INHERITED
                differ = tuple(ledger.differences[outer])
                reference = int(ledger.alignment.reference[outer])
                finding = replace(finding, pair=outer, target=row, reference=reference, differences=differ)
            row = int(ledger.a.calls.parent[row])
        return finding

    def _nest(self, findings: list[Finding]) -> None:
        """Mark the calls around an origin as following from it."""
        ledger = self.ledger
        pair_of = {int(row): pair for pair, row in enumerate(ledger.alignment.target.tolist())} if findings else {}
        for finding in findings:
            row = int(ledger.a.calls.parent[finding.target]) if finding.target >= 0 and finding.ready is None else -1
            while row >= 0:
                outer = pair_of.get(row, -1)
                if outer >= 0 and ledger.verdict[outer] == EQUIVALENT:
                    ledger.verdict[outer] = INHERITED
                row = int(ledger.a.calls.parent[row])
