"""Verdicts: which calls are identical, equivalent, inherited, and which are the origin.

The calls of a step are visited in the order in which they ran. Each is judged by what it did to the error that came in
(rules/): more than rounding explains, from right inputs, is an origin; what follows from a wrong input is inherited. An
input that is wrong though whatever made it was right points at the calls between (paths/provenance.py).
docs/explanation/verdicts.md and the pages it names give the rules with their reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.slots import OUTPUT, SlotPairs
from numscope.compare.judge.correspondence import Differences
from numscope.compare.judge.facts import gather_facts
from numscope.compare.judge.findings import (
    EQUIVALENT,
    IDENTICAL,
    INHERITED,
    NO_CAUSE,
    ORIGIN,
    ErrorSizes,
    Finding,
    History,
    Weight,
    or_zero,
)
from numscope.compare.judge.further import further_findings
from numscope.compare.judge.other_ranks import OtherRanks
from numscope.compare.judge.paths.provenance import Provenance
from numscope.compare.judge.paths.reach import set_aside
from numscope.compare.judge.reasons import CallReason, DataDiffers, DataOfAnotherSize
from numscope.compare.judge.rounding.call_errors import CallErrors
from numscope.compare.judge.rounding.choices import Choice
from numscope.compare.judge.rules.composite_calls import CompositeCalls
from numscope.compare.judge.rules.late_writes import late_writes
from numscope.compare.judge.rules.leaf_calls import LeafCalls
from numscope.compare.judge.rules.optimizer_steps import judge_optimizer
from numscope.compare.judge.rules.other_programs import other_programs
from numscope.compare.judge.state import State
from numscope.compare.load.side import Flags, Floats, Ints, Side
from numscope.compare.measure.measures import Measures

_DATA_ROUNDING = 4  # unit roundoffs


@dataclass(frozen=True)
class Judgement:
    """The verdict on every pair of calls of one step of one rank."""

    verdict: Ints
    errors: CallErrors
    limits: Floats
    differences: Differences
    findings: list[Finding]
    reasons: dict[int, str]
    wrong_slots: Flags
    unmeasured: Flags  # pairs that count as right because no tensor of theirs was measured
    unmeasured_slots: Flags
    corresponds: Flags  # pairs that do the same job; results of the others need not agree
    doubtful: Flags  # pairs that rest on the order of calls alone
    batch_shapes: str  # of the data, where these are parts of other sizes of a batch
    choices: list[Choice]  # that fell otherwise, by rounding
    rearranged: list[Finding]  # calls that do the same in another way: no origins


def judge(
    a: Side,
    b: Side,
    alignment: Alignment,
    slots: SlotPairs,
    measures: Measures,
    history: History,
    noise: Floats | None = None,
    scale: float = 1.0,
    other_ranks: OtherRanks | None = None,
) -> Judgement:
    """Judge every pair of calls of one step of one rank; `scale` is the user's factor on what rounding explains."""
    facts = gather_facts(
        a,
        b,
        alignment,
        slots,
        measures,
        history.precisions,
        noise=noise,
        scale=scale,
        other_ranks=other_ranks,
        chips=history.chips,
    )
    state = State(facts, history)
    judgement = _Walk(state).run()
    history.started = True
    history.diverged = history.diverged or bool(judgement.findings)
    history.noise = state.rounding_so_far()
    history.late_writes = late_writes(facts) if not history.diverged else {}
    return judgement


class _Visit(NamedTuple):
    """A pair of calls that is visited: when it begins, or when its inner calls have ended."""

    order: float
    pair: int
    at_end: bool


class _Walk:
    """Visits the pairs of calls in the order in which they ran."""

    def __init__(self, state: State) -> None:
        self.facts, self.state = state.facts, state
        self.provenance = Provenance(state)
        self.leaf_calls = LeafCalls(state, self.provenance)
        self.composite_calls = CompositeCalls(state, self.provenance)

    def run(self) -> Judgement:
        facts, state = self.facts, self.state
        for visit in self._visits():
            self._judge(visit)
        self.provenance.regions.withdraw_by_bits()
        rearranged = set_aside(state)
        findings = self._findings()
        findings += other_programs(state, findings) or further_findings(state, findings)
        blamed = np.isin(np.arange(len(state.corresponds)), list(state.cause_of))
        return Judgement(
            verdict=state.verdict,
            errors=facts.errors,
            limits=facts.limits,
            differences=facts.differences,
            findings=findings,
            reasons={},
            wrong_slots=state.wrong_slots(),
            unmeasured=self._unmeasured(),
            unmeasured_slots=~facts.measures.believed,
            corresponds=state.corresponds & ~blamed,
            doubtful=facts.doubtful,
            batch_shapes=facts.batch_shapes,
            choices=self._choices(),
            rearranged=rearranged,
        )

    def _judge(self, visit: _Visit) -> None:
        pair, kind = visit.pair, self.facts.kind(visit.pair)
        if kind == "data":
            self._judge_data(pair)
        elif kind == "optimizer":
            judge_optimizer(self.state, self.provenance, pair)
        elif not self.facts.has_inner_calls[pair]:
            self.leaf_calls.judge(pair)
        elif visit.at_end:
            self.composite_calls.judge(pair)
        else:
            for row in self.facts.given(pair):
                self.provenance.check(pair, row)

    def _visits(self) -> list[_Visit]:
        """Return the pairs that are not identical, in order; a call with inner calls comes again after those."""
        facts = self.facts
        differs = ~facts.errors.identical
        differs[list(facts.differences)] = True
        differs |= self._optimizers_with_lone_slots()
        if not differs.any():
            return []
        last = list(range(len(facts.a.calls)))  # the last call inside each call
        parents = facts.a.calls.parent.tolist()
        for row in range(len(last) - 1, -1, -1):
            if (parent := parents[row]) >= 0 and last[row] > last[parent]:
                last[parent] = last[row]
        visits: list[_Visit] = []
        for pair in np.flatnonzero(differs).tolist():
            row = int(facts.alignment.target[pair])
            visits.append(_Visit(float(row), pair, at_end=False))
            if facts.has_inner_calls[pair]:
                visits.append(_Visit(last[row] + 0.5 - row * 1e-9, pair, at_end=True))  # the inner one ends first
        return sorted(visits)

    def _optimizers_with_lone_slots(self) -> Flags:
        """Return which pairs are optimizers' steps that have a slot on one side alone: a parameter or its gradient."""
        facts = self.facts
        lone = np.zeros(len(facts.alignment.target), np.bool_)
        for one in facts.sides:
            lone |= np.isin(one.calls, one.side.slots.call[one.lone_slots])
        kinds = facts.a.calls.kind[facts.alignment.target]
        return np.asarray(lone & (kinds == facts.a.book.code("optimizer")))

    # Data -----------------------------------------------------------------------------------------------------------

    def _judge_data(self, pair: int) -> None:
        facts, state = self.facts, self.state
        call, _ = facts.calls(pair)
        for row in facts.rows(pair):
            error = facts.error(row)
            t, r = facts.tensors(row)
            if error == 0 or facts.unmeasured[row]:
                continue
            made_earlier = facts.flow_a.producer[t] not in (-1, call)
            if made_earlier:
                status = self.provenance.check(pair, row)
                if not status.is_right:
                    state.set_verdict(pair, INHERITED, status.cause)
                continue
            explained = _DATA_ROUNDING * facts.roundoff(t, r)
            if error <= explained:
                state.mark_right(t, r, error)
                state.note_rounding(pair, error)
            elif state.history.diverged:
                state.mark_wrong(t, r, facts.error_or_zero(row), NO_CAUSE)
                state.verdict[pair] = INHERITED
            elif facts.batch_shapes and np.isnan(error):
                sizes = ErrorSizes(np.inf, explained)
                finding = facts.finding_with_evidence(DataOfAnotherSize(), pair, sizes, facts.slot(row))
                state.suspect(replace(finding, batch_shapes=facts.batch_shapes), firm=False, at=pair)
            else:
                size = np.inf if np.isnan(error) else error
                cause = state.blame(DataDiffers(), pair, ErrorSizes(size, explained), facts.slot(row))
                state.mark_wrong(t, r, size, cause)
                state.verdict[pair] = ORIGIN

    # The end --------------------------------------------------------------------------------------------------------

    def _findings(self) -> list[Finding]:
        """Return the findings that stand, in order, and give the verdicts that follow from them and from withdrawn ones."""
        state = self.state
        findings = []
        for pair, cause in state.cause_of.items():
            if not state.has_open_cause(cause):
                state.verdict[pair] = IDENTICAL if self.facts.errors.identical[pair] else EQUIVALENT
        for suspicion in state.suspicions:
            if suspicion.stands:
                finding = self._outermost(suspicion.finding)
                if not suspicion.reaches_end:
                    finding = replace(finding, weight=Weight.READ_BY_NONE)
                findings.append(finding)
                if finding.pair >= 0 and finding.step == self.facts.a.step and finding.ready is None:
                    state.verdict[finding.pair] = ORIGIN
        self._mark_enclosing_calls(findings)
        return sorted(findings, key=lambda finding: (finding.weight, finding.order))

    def _choices(self) -> list[Choice]:
        """Return the choices that fell otherwise by rounding: not those made from integers that differ already."""
        facts, errors = self.facts, self.facts.errors
        forward = facts.a.calls.phase[facts.alignment.target] == facts.a.book.code("forward")
        chosen = errors.discrete_out & ~errors.discrete_in & forward & ~facts.has_inner_calls
        chosen &= self.state.verdict == EQUIVALENT
        return [
            Choice(
                facts.target_name(pair),
                int(errors.flipped[pair]),
                int(errors.choices[pair]),
                or_zero(float(errors.error_in[pair])),
            )
            for pair in np.flatnonzero(chosen).tolist()
        ]

    def _outermost(self, finding: Finding) -> Finding:
        """Return the finding about the outermost function around a call whose own arguments differ."""
        facts = self.facts
        if not isinstance(finding.reason, CallReason) or finding.pair < 0 or finding.ready is not None:
            return finding
        calls = facts.a.calls
        row, api = int(calls.parent[finding.target]), facts.a.book.code("api")
        while row >= 0 and calls.kind[row] == api:
            pair = facts.pair_of(row)
            if pair in facts.differences:
                self.state.verdict[finding.pair] = INHERITED
                target, reference = facts.calls(pair)
                differ = tuple(facts.differences[pair])
                finding = replace(finding, pair=pair, target=target, reference=reference, differences=differ)
            row = int(calls.parent[row])
        return finding

    def _mark_enclosing_calls(self, findings: list[Finding]) -> None:
        """Let the calls around an origin follow from it."""
        facts, state = self.facts, self.state
        for finding in findings:
            row = int(facts.a.calls.parent[finding.target]) if finding.target >= 0 and finding.ready is None else -1
            while row >= 0:
                pair = facts.pair_of(row)
                if pair >= 0 and state.verdict[pair] == EQUIVALENT:
                    state.verdict[pair] = INHERITED
                row = int(facts.a.calls.parent[row])

    def _unmeasured(self) -> Flags:
        """Return the pairs of whose tensors, or results, none was measured; where the whole step has no measure, all."""
        facts, verdict = self.facts, self.state.verdict
        right = (verdict == EQUIVALENT) | (verdict == IDENTICAL)
        if facts.unmeasured.all():
            return np.asarray(right & bool(len(facts.unmeasured)))
        compared, made = facts.measures.believed, facts.slots.role == OUTPUT
        blank = np.zeros_like(right)
        for chosen in (np.ones_like(made), made):
            shows, measured = np.zeros_like(right), np.zeros_like(right)
            shows[facts.slots.pair[chosen]] = True
            measured[facts.slots.pair[chosen & compared]] = True
            blank |= shows & ~measured
        return np.asarray(right & blank)
