"""Judges a pair of calls that have inner calls: those explain its error, or the work between them does."""

from __future__ import annotations

import numpy as np

from numscope.compare.judge.facts import OneSide
from numscope.compare.judge.findings import INHERITED, ORIGIN, PLAIN_ROUNDING, ErrorSizes, LoneCall, or_zero
from numscope.compare.judge.paths.provenance import Provenance
from numscope.compare.judge.reasons import InnerCallsAgree, StandsOut
from numscope.compare.judge.state import State
from numscope.core.operators import IDLE

_OWN_WORK = 32  # unit roundoffs, and times the largest error of the inner calls


class CompositeCalls:
    """Judges calls with inner calls, after those."""

    def __init__(self, state: State, provenance: Provenance) -> None:
        self.facts, self.state, self.provenance = state.facts, state, provenance
        parent = self.facts.a.calls.parent[self.facts.alignment.target]
        self.inner: dict[int, list[int]] = {}
        for pair in np.flatnonzero(parent >= 0).tolist():
            self.inner.setdefault(int(parent[pair]), []).append(pair)

    def judge(self, pair: int) -> None:
        """Judge a pair by its inner calls, by what it is given, and by what it makes, in this order."""
        state = self.state
        target, _ = self.facts.calls(pair)
        inner = self.inner.get(target, [])
        cause = next((state.cause_of[p] for p in inner if p in state.cause_of), None)
        for row in self.facts.given(pair):
            status = self.provenance.check(pair, row)
            if not status.is_right and cause is None:
                cause = status.cause
        for row in self.facts.made(pair):
            found = self._check_output(pair, row, inner, cause)
            cause = found if cause is None else cause
        if cause is None and not state.anything_wrong():
            cause = self._cause_of_standing_out(pair)
        if cause is not None and not self.facts.errors.identical[pair]:
            is_origin = cause >= 0 and state.suspicions[cause].finding.pair == pair
            state.set_verdict(pair, ORIGIN if is_origin else INHERITED, cause)

    def _cause_of_standing_out(self, pair: int) -> int | None:
        """Return a suspicion where a module changes the norm or the mean of what passes as none of its siblings does."""
        facts, state = self.facts, self.state
        if not state.corresponds[pair] or not facts.limits[pair] < np.inf:
            return None
        by = facts.moments.across(facts.made(pair))
        if by is None:
            return None
        sizes = ErrorSizes(
            or_zero(facts.errors.error_out[pair]),
            or_zero(float(facts.limits[pair])),
            or_zero(facts.errors.error_in[pair]),
        )
        lone = LoneCall(*(self._first_lone_call(one, call) for one, call in zip(facts.sides, facts.calls(pair))))
        if lone == LoneCall():
            cause = state.blame(StandsOut(by), pair, sizes)
        else:
            order = facts.order(pair) if lone.target < 0 else None
            cause = state.suspect(facts.lone_finding(lone, facts.target_name(pair), sizes, order=order), firm=True)
        for row in facts.made(pair):
            state.mark_wrong(*facts.tensors(row), facts.error_or_zero(row), cause)
        return cause

    def _first_lone_call(self, one: OneSide, module: int) -> int:
        """Return the first call inside a module that computes and that one side alone has, -1 for none."""
        calls = one.side.calls
        for call in one.lone_calls[one.lone_calls > module].tolist():
            above = int(calls.parent[call])
            while above > module:
                above = int(calls.parent[above])
            if above == module and self.facts.rounding_class(one.side, call) not in IDLE:
                return int(call)
        return -1

    def _check_output(self, pair: int, row: int, inner: list[int], cause: int | None) -> int | None:
        """Return the cause of a wrong output, None for one that is right."""
        facts, state = self.facts, self.state
        t, r = facts.tensors(row)
        error = facts.error(row)
        label = self.provenance.label(pair, row).replace("parameters_grad.", "parameters.", 1)
        if error == 0 or np.isnan(error) or label in state.history.other_layouts:
            return None
        if state.target.wrong[t]:
            return int(state.target.cause[t])
        target, reference = facts.calls(pair)
        if facts.flow_a.producer[t] not in (-1, target) or facts.flow_b.producer[r] not in (-1, reference):
            if state.counterpart[t] == r:
                return None
            status = self.provenance.check(pair, row)
            return None if status.is_right else status.cause
        if not state.corresponds[pair]:
            return None  # it is given another tensor: judged by where that leads
        # The call's own work, beyond its inner calls: the sum of gradients, or something that was not recorded.
        part = self._cause_of_wrong_part(t, inner)
        if part is not None and error > PLAIN_ROUNDING * facts.roundoff(t, r):
            state.mark_wrong(t, r, error, part)
            return part
        came_in = max([0.0, *(or_zero(facts.errors.error_out[p]) for p in inner)])
        came_in = max(came_in, or_zero(facts.errors.error_in[pair]))
        is_backward = facts.phase(pair) == "backward"
        if is_backward:
            came_in = max(came_in, state.rounding["backward"], state.history.noise)
        explained = _OWN_WORK * facts.roundoff(t, r) + _OWN_WORK * came_in
        if is_backward:
            explained = max(explained, or_zero(facts.errors.floor[pair]))
        if error <= explained:
            return None
        if cause is None and not state.anything_wrong():
            slot = facts.slot(row)
            adds_up = slot.startswith("parameters_grad")  # the sum that reaches the optimizer is judged
            sizes = ErrorSizes(error, explained, came_in)
            cause = state.blame(InnerCallsAgree(), pair, sizes, slot, firm=not adds_up)
        elif cause is None:
            cause = state.first_cause()
        state.mark_wrong(t, r, error, cause)
        return cause

    def _cause_of_wrong_part(self, t: int, inner: list[int]) -> int | None:
        """Return the cause of something wrong of the same size, made by an inner call, that may be a part of a sum."""
        elements, wrong = self.facts.a.tensors.elements, self.state.target.wrong
        for pair in inner:
            for row in self.facts.made(pair):
                part, _ = self.facts.tensors(row)
                if wrong[part] and elements[part] == elements[t]:
                    return int(self.state.target.cause[part])
        return None
