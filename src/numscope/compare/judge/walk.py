"""Verdicts: which calls are identical, equivalent, inherited, and which are the origin.

The calls of a step are visited in the order in which they ran. Each is judged by what it did to the error that came
in (leaves.py, outer.py, updates.py): more than rounding explains, from right inputs, is an origin; what follows from a
wrong input is inherited. An input that is wrong though whatever made it was right points at what stands between
(provenance.py).
docs/explanation/verdicts.md gives the rule with its reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.arguments import Difference
from numscope.compare.align.slots import SlotPairs
from numscope.compare.judge.call_errors import CallErrors
from numscope.compare.judge.findings import EQUIVALENT, IDENTICAL, INHERITED, ORIGIN, RIGHT, Finding, History
from numscope.compare.judge.ledger import Ledger
from numscope.compare.judge.other_ranks import Elsewhere
from numscope.compare.judge.paths.provenance import Provenance
from numscope.compare.judge.reasons import CallReason, DataDiffers, DataOfAnotherSize
from numscope.compare.judge.rules.composite_calls import Outer
from numscope.compare.judge.rules.late_writes import late_writes
from numscope.compare.judge.rules.leaf_calls import Leaves
from numscope.compare.judge.rules.optimizer_steps import judge_optimizer
from numscope.compare.load.side import Flags, Floats, Ints, Side
from numscope.compare.measure.measures import Measures


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
    unmeasured: Flags  # pairs that are right only in so far as nothing of them was measured
    slot_unmeasured: Flags
    solid: Flags  # pairs that do the same job: what the others made need not be the same
    parts: str  # the shapes of the data, where these are parts of other sizes of a batch


def judge(
    a: Side,
    b: Side,
    alignment: Alignment,
    slots: SlotPairs,
    measures: Measures,
    history: History,
    noise: Floats | None = None,
    scale: float = 1.0,
    elsewhere: Elsewhere | None = None,
) -> Judgement:
    """Judge every pair of calls of one step of one rank; `elsewhere`: what the other ranks hold."""
    ledger = Ledger(a, b, alignment, slots, measures, history, elsewhere)
    judgement = _Walk(ledger, ledger.limits(scale, noise)).run()
    history.started = True
    history.diverged = history.diverged or bool(judgement.findings)
    history.noise = max(history.noise, *ledger.worst_right.values())
    history.late = late_writes(ledger) if not history.diverged else {}
    return judgement


class _Walk:
    """Visits the pairs of calls in the order in which they ran."""

    def __init__(self, ledger: Ledger, limits: Floats) -> None:
        self.ledger, self.limits = ledger, limits
        self.provenance = Provenance(ledger)
        self.leaves = Leaves(ledger, self.provenance, limits)
        self.outer = Outer(ledger, self.provenance)

    def run(self) -> Judgement:
        ledger = self.ledger
        for pair, is_end in self._events():
            kind = ledger.kind(pair)
            if kind == "data":
                self._judge_data(pair)
            elif kind == "optimizer":
                judge_optimizer(ledger, self.provenance, pair)
            elif not ledger.composite[pair]:
                self.leaves.judge(pair)
            elif is_end:
                self.outer.judge(pair)
            else:
                for row in ledger.given(pair):
                    self.provenance.check(pair, row)
        self.provenance.regions.heal_by_bits()
        findings = self._settle()
        return Judgement(
            ledger.verdict,
            ledger.errors,
            self.limits,
            ledger.differences,
            findings,
            {},
            ledger.slot_wrong(),
            self._unmeasured(),
            ledger.unmeasured,
            ledger.solid & ~np.isin(np.arange(len(ledger.solid)), list(ledger.cause_of)),
            ledger.parts,
        )

    def _unmeasured(self) -> Flags:
        """Return the pairs that show tensors, none of them measured; where the whole step has no measure, all."""
        ledger = self.ledger
        right = (ledger.verdict == EQUIVALENT) | (ledger.verdict == IDENTICAL)
        if ledger.unmeasured.all():
            return np.asarray(right & bool(len(ledger.unmeasured)))
        shows, seen = np.zeros_like(right), np.zeros_like(right)
        shows[ledger.slots.pair] = True
        seen[ledger.slots.pair[~ledger.unmeasured]] = True
        return np.asarray(right & shows & ~seen)

    def _events(self) -> list[tuple[int, bool]]:
        """Return the pairs that are not identical, in order; a call with inner calls comes again after those."""
        ledger = self.ledger
        interesting = ~ledger.errors.identical
        interesting[list(ledger.differences)] = True
        interesting |= self._uneven_optimizers()
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

    def _uneven_optimizers(self) -> Flags:
        """Return which pairs are optimizers' steps that have a slot on one side alone: a parameter or its gradient."""
        ledger, al = self.ledger, self.ledger.alignment
        uneven = np.isin(al.target, ledger.a.slots.call[ledger.slots.alone_a])
        uneven |= np.isin(al.reference, ledger.b.slots.call[ledger.slots.alone_b])
        return np.asarray(uneven & (ledger.a.calls.kind[al.target] == ledger.a.book.code("optimizer")))

    # Data -----------------------------------------------------------------------------------------------------------

    def _judge_data(self, pair: int) -> None:
        ledger = self.ledger
        row_of_call = int(ledger.alignment.target[pair])
        for row in ledger.rows(pair):
            error = ledger.error(row)
            t, r = ledger.tensors(row)
            if error == 0 or ledger.unmeasured[row]:
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
            elif ledger.parts and np.isnan(error):
                ledger.find(DataOfAnotherSize(), pair, np.inf, explained, 0.0, slot=ledger.slot(row), firm=False)
            else:
                size = float("inf") if np.isnan(error) else error
                cause = ledger.find(DataDiffers(), pair, size, explained, 0.0, slot=ledger.slot(row))
                ledger.mark_wrong(t, r, size, cause)
                ledger.verdict[pair] = ORIGIN

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
        if not isinstance(finding.reason, CallReason) or finding.pair < 0 or finding.ready is not None:
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
