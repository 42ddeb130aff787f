"""Judges a pair of calls that have no inner calls, by what they did to the error that came in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numscope.compare.align.slots import INPUT, OUTPUT
from numscope.compare.judge.findings import (
    EQUIVALENT,
    INHERITED,
    ORIGIN,
    PLAIN_ROUNDING,
    RIGHT,
    ErrorSizes,
    Reason,
    Standing,
    Status,
    or_zero,
)
from numscope.compare.judge.paths.counterparts import changed_places, lone_calls_make_up
from numscope.compare.judge.paths.provenance import Provenance
from numscope.compare.judge.paths.region_cause import region_cause
from numscope.compare.judge.reasons import (
    AsksForAnother,
    ChangesState,
    ComputesWrongly,
    OutputDiffers,
    StandsOut,
    UnrecordedWork,
)
from numscope.compare.judge.rounding.moments import StandOut
from numscope.compare.judge.rules.unrecorded_calls import lone_call_before
from numscope.compare.judge.state import State
from numscope.compare.load.side import Ints, Side, distinct
from numscope.core.operators import IDLE, Rounding, Trait, names_with, operator

_FACTOR_SHARE = 1 / 16  # of the limit: what a wrong factor, from the same inputs, is held to
_LIST_GAIN = 32.0  # of the error that came in, for an element of a list
_RUNNING_STATISTICS = ("running_mean", "running_var")


class _Came(NamedTuple):
    """The error that came into a pair of calls."""

    measured: float  # of its inputs, or of all before it where inputs were not recorded
    carried: float  # of inputs that cannot be measured: the error on the way to them

    @property
    def largest(self) -> float:
        return max(self.measured, self.carried)


class _Source(NamedTuple):
    """Where an unmeasured input became wrong: a pair, and its slot where no recorded call made what is in it."""

    pair: int
    slot: str = ""


class LeafCalls:
    """Judges calls without inner calls."""

    def __init__(self, state: State, provenance: Provenance) -> None:
        self.facts, self.state, self.provenance = state.facts, state, provenance
        self.uses = _uses(self.facts.a, self.facts.flow_a.role)

    def judge(self, pair: int) -> None:
        """Give a pair its verdict: it follows from what it is given, is explained by rounding, or is an origin."""
        facts, state = self.facts, self.state
        statuses = self._statuses(pair)
        unexplained = [status.cause for status in statuses if status.standing is Standing.UNEXPLAINED]
        tainted = next((status.cause for status in statuses if status.standing is Standing.TAINTED), None)
        if tainted is None and not unexplained:
            tainted = self._hidden_taint(pair)
        out = float(facts.errors.error_out[pair])
        if tainted is not None:
            self._inherit(pair, tainted, out)
        elif unexplained and out == 0 and self._proves_inputs(pair):
            for cause in unexplained:
                state.suspicions[cause].withdraw(facts.order(pair) + 0.5)
        elif unexplained:
            state.uncouple(pair, unexplained)
            state.set_verdict(pair, INHERITED, unexplained[0])
            self._check_unused_outputs(pair)
        elif not state.corresponds[pair]:
            self._check_unused_outputs(pair)
        else:
            self._judge_by_error(pair, out)
        if np.isinf(out) and state.verdict[pair] == EQUIVALENT:
            # A NaN on one side alone is not rounding, whatever the forward call was given.
            of_forward = self._cause_of_forward(pair)
            if of_forward is not None:
                state.set_verdict(pair, INHERITED, of_forward)

    def _judge_by_error(self, pair: int, out: float) -> None:
        """Judge a pair whose inputs are right and correspond."""
        facts, state = self.facts, self.state
        came = self._came_in(pair)
        hidden = facts.hides_inputs(pair)
        wrong = facts.computes_wrongly(pair)
        if wrong is not None and out != 0:
            sizes = ErrorSizes(out, float(facts.limits[pair]), came.measured)
            cause = state.blame(ComputesWrongly(wrong.who, wrong.words), pair, sizes)
            state.inherit(pair, cause)
            state.set_verdict(pair, ORIGIN, cause)
            return
        flipped = hidden and bool(facts.errors.discrete_out[pair]) and came.measured > 0
        if np.isnan(out) or flipped or self._is_explained(pair, out, came):
            for row in facts.made(pair):
                error = facts.error(row)
                state.mark_right(*facts.tensors(row), came.largest if np.isnan(error) else error)
            state.note_rounding(pair, out)
            self._remember_arguments(pair, out)
        elif self._does_another_part(pair):
            state.uncouple(pair, [])
            if facts.errors.operator[pair] == Rounding.MOVE:
                self._check_unused_outputs(pair)
        else:
            sizes = ErrorSizes(out, float(facts.limits[pair]), came.measured)
            lone = lone_call_before(facts, pair, sizes) if hidden else None
            if lone is not None:
                state.inherit(pair, state.suspect(lone, firm=True))
            elif (unknown := self._unknown_input(pair)) >= 0:
                regions = self.provenance.regions.regions(*facts.tensors(unknown))
                cause = state.suspect(region_cause(state, pair, unknown, regions, sizes), firm=False, at=pair)
                state.uncouple(pair, [cause])
                state.set_verdict(pair, INHERITED, cause)
            elif self._creates_for_later(pair):  # numbers of another kind, perhaps for another use: see where they lead
                cause = state.blame(OutputDiffers(), pair, sizes, firm=False)
                state.uncouple(pair, [cause])
                state.set_verdict(pair, ORIGIN, cause)
            else:
                self._blame(pair, sizes, came)

    def _blame(self, pair: int, sizes: ErrorSizes, came: _Came) -> None:
        """Make a pair an origin, or the one before it whose result could not be measured."""
        state = self.state
        source = self._unmeasured_source(pair) if sizes.came_in == 0 else None
        if not sizes.error > sizes.explained:
            sizes = sizes._replace(explained=self._limit(pair, came))
        sizes = self._off_in_list(pair) or sizes
        blamed, slot = source or _Source(self._asked_otherwise(pair))
        by = self._stands_out(pair) if sizes.error <= sizes.explained else None
        reason: Reason = UnrecordedWork() if slot else OutputDiffers() if by is None else StandsOut(by)
        if source is None and blamed != pair:
            reason = AsksForAnother()
        cause = state.blame(reason, blamed, sizes, slot)
        state.inherit(pair, cause)
        state.set_verdict(blamed, ORIGIN, cause)

    def _asked_otherwise(self, pair: int) -> int:
        """Return the forward call of a backward one where it alone is asked for something else; else the pair itself."""
        facts = self.facts
        forward = int(facts.forward_pair[pair]) if facts.phase(pair) == "backward" else -1
        asked = forward >= 0 and facts.has_telling_arguments(forward)
        return forward if asked and self.state.verdict[forward] in (EQUIVALENT, ORIGIN) else pair

    # The inputs -----------------------------------------------------------------------------------------------------

    def _statuses(self, pair: int) -> list[Status]:
        """Return whether the inputs of a pair are right.

        Calls whose forward calls do different jobs may get different gradients, and calls with other weights, or of two
        operators that only give nearly the same (a fused kernel, and the last of the calls in its place), different
        inputs: they only inherit.
        """
        facts, state = self.facts, self.state
        forward = int(facts.forward_pair[pair]) if facts.phase(pair) == "backward" else -1
        given = facts.given(pair)
        other_weights = any(facts.unrelated_sources[row] and facts.slots.role[row] == INPUT for row in given)
        if (forward < 0 or state.corresponds[forward]) and not other_weights and not facts.only_gives_alike[pair]:
            return [self.provenance.check(pair, row) for row in given]
        target = state.target
        tensors = [facts.tensors(row)[0] for row in given]
        return [Status(Standing.TAINTED, int(target.cause[t])) if target.wrong[t] else RIGHT for t in tensors]

    def _hidden_taint(self, pair: int) -> int | None:
        """Return the cause if something wrong reaches a call other than through its paired inputs."""
        facts, state, slots = self.facts, self.state, self.facts.a.slots
        call, _ = facts.calls(pair)
        forward = int(facts.a.calls.forward[call])
        held: list[int] = []
        if forward >= 0 and facts.phase(pair) == "backward":
            # A backward call also reads what its forward call was given and made.
            here = slots.tensor[slots.start[forward] : slots.start[forward + 1]]
            held += facts.flow_a.same[here[here >= 0]].tolist()
        if not facts.given(pair):
            held += facts.flow_a.inputs(call)
        cause = next((int(state.target.cause[t]) for t in held if state.target.wrong[t]), None)
        if cause is None and facts.hides_inputs(pair) and state.anything_wrong():
            return state.first_cause()
        return cause

    def _cause_of_forward(self, pair: int) -> int | None:
        """Return the cause from which the forward call of a backward call follows."""
        call, _ = self.facts.calls(pair)
        forward = self.facts.pair_of(int(self.facts.a.calls.forward[call]))
        return self.state.cause_of.get(forward) if forward >= 0 else None

    def _came_in(self, pair: int) -> _Came:
        facts, state = self.facts, self.state
        measured = max(or_zero(facts.errors.error_in[pair]), or_zero(facts.errors.error_state[pair]))
        if facts.hides_inputs(pair):
            measured = max(measured, state.rounding_so_far())
            return _Came(measured, measured)
        unknown = [facts.tensors(row)[0] for row in facts.given(pair) if np.isnan(facts.error(row))]
        return _Came(measured, max((float(state.target.error[t]) for t in unknown), default=0.0))

    def _unknown_input(self, pair: int) -> int:
        """Return the slot of an input that cannot be told apart, and that calls of one side alone made; -1 for none.

        A mask of bools here and one of numbers there may mean the same. Where they do not, those calls are the cause.
        """
        facts = self.facts
        for row in facts.given(pair):
            t, r = facts.tensors(row)
            if not np.isnan(facts.error(row)) or self.state.counterpart[t] == r:
                continue
            regions = self.provenance.regions.regions(t, r)
            for one, part in zip(facts.sides, regions, strict=True):
                if any(facts.rounding_class(one.side, call) not in IDLE for call in part.calls):
                    return row
        return -1

    def _unmeasured_source(self, pair: int) -> _Source | None:
        """Return the pair that first made an input which differs by an unknown amount, though it was given the same.

        Where nothing recorded made it, that is the pair that was first given it.
        """
        facts = self.facts
        for row in facts.given(pair):
            if not np.isnan(facts.error(row)):
                continue
            t, _ = facts.tensors(row)
            if facts.flow_a.producer[t] < 0:
                first = int(np.flatnonzero(facts.flow_a.same[facts.slots.a] == t)[0])
                return _Source(int(facts.slots.pair[first]), facts.slot(first))
            producer = facts.pair_of(int(facts.flow_a.producer[t]))
            if producer < 0 or facts.errors.error_out[producer] == 0:
                continue  # what it made is the same: the difference is a cast's, on the way
            earlier = self._unmeasured_source(producer)
            if earlier is not None:
                return earlier
            came_in = np.fmax(facts.errors.error_in[producer], facts.errors.error_state[producer])
            if self.state.corresponds[producer] and not np.nan_to_num(came_in, posinf=1.0) > 0:
                return _Source(producer)
        return None

    # The outputs ----------------------------------------------------------------------------------------------------

    def _proves_inputs(self, pair: int) -> bool:
        """Return whether the same result proves that the inputs were the same, too: not where it is a sign or a choice."""
        errors = self.facts.errors
        coarse = errors.operator[pair] == Rounding.DISCRETE or errors.name[pair] in names_with(Trait.SIGN_LIKE)
        return not coarse and any(self.facts.is_telling(row) for row in self.facts.made(pair))

    def _creates_for_later(self, pair: int) -> bool:
        """Return whether a pair makes tensors from nothing but arguments, for calls that read them."""
        facts = self.facts
        made = [facts.tensors(row)[0] for row in facts.made(pair)]
        creates = facts.errors.operator[pair] == Rounding.CREATE
        return creates and not facts.inputs_unrecorded and any(self.uses[t] for t in made)

    def _does_another_part(self, pair: int) -> bool:
        """Return whether a call does the work of other calls of the other run.

        It chooses halves in another order, or comes to the same result after a further call (the sum, divided by the
        count, for the mean).
        """
        facts = self.facts
        off = [row for row in facts.made(pair) if facts.error(row) != 0]
        if facts.errors.operator[pair] == Rounding.MOVE:
            return all(changed_places(facts, row) for row in off)
        return bool(facts.argument_differences(pair)) and all(lone_calls_make_up(self.state, row) for row in off)

    def _inherit(self, pair: int, cause: int, out: float) -> None:
        """Let a pair follow from something wrong, unless its outputs are as near as plain rounding: no cancellation counts."""
        errors = self.facts.errors
        plain = min(float(errors.floor[pair]), PLAIN_ROUNDING * float(errors.roundoff[pair]))
        if np.isnan(out) or out > plain:
            self.state.inherit(pair, cause)

    def _check_unused_outputs(self, pair: int) -> None:
        """Judge the outputs, of a pair that does not correspond, that no recorded call uses."""
        facts = self.facts
        call, _ = facts.calls(pair)
        for row in facts.made(pair) if facts.phase(pair) == "forward" else ():
            t, _ = facts.tensors(row)
            if self.uses[t] == 0 and facts.error(row) != 0 and facts.flow_a.producer[t] == call:
                status = self.provenance.regions.check(pair, row)
                if not status.is_right:
                    self.state.set_verdict(pair, INHERITED, status.cause)

    # Rounding -------------------------------------------------------------------------------------------------------

    def _is_explained(self, pair: int, out: float, came: _Came) -> bool:
        if self.facts.is_exact(pair) and not self._has_other_arguments(pair):
            return True  # each side's result is what its own inputs give: no rule about rounding is needed
        within = out <= self._limit(pair, came)
        scaled = self._is_scaled(pair, came)
        return within and not scaled and self._off_in_list(pair) is None and self._stands_out(pair) is None

    def _stands_out(self, pair: int) -> StandOut | None:
        """Return how the call changes the norm or the mean of what passes through it, where its siblings do not."""
        facts = self.facts
        if facts.errors.discrete_in[pair] or not facts.limits[pair] < np.inf:
            return None
        return facts.moments.across(facts.made(pair), self._has_other_arguments(pair))

    def _has_other_arguments(self, pair: int) -> bool:
        return any(difference.telling for difference in self.facts.argument_differences(pair))

    def _limit(self, pair: int, came: _Came) -> float:
        """Return the error that is explained, lowered where there is other evidence that the two compute differently."""
        facts = self.facts
        limit = float(facts.limits[pair] + facts.errors.gain[pair] * came.carried)
        if self._has_other_arguments(pair):
            # With arguments that differ, only the error that came in is an excuse, not the call's own rounding.
            return min(limit, 2.0 * came.largest)
        return limit

    def _is_scaled(self, pair: int, came: _Came) -> bool:
        """Return whether, from the same inputs, the outputs differ by a factor, which rounding cannot make."""
        facts = self.facts
        least = float(facts.limits[pair]) * _FACTOR_SHARE
        return came.measured == 0.0 and any(facts.scaled_error(row) > least for row in facts.made(pair))

    def _off_in_list(self, pair: int) -> ErrorSizes | None:
        """Return the error of an element of a list that was given right and came out wrong.

        The worst of a list may be one that is nothing but rounding, and would hide it.
        """
        facts = self.facts
        if facts.errors.name[pair] not in names_with(Trait.LIST_BY_ELEMENT):
            return None
        rows = {facts.slot(row): row for row in facts.rows(pair)}
        others = [
            facts.error_or_zero(row) for slot, row in rows.items() if slot.count(".") == 1 and slot.startswith("input")
        ]
        for slot, row in rows.items():
            head, _, element = slot.partition(".")
            given = rows.get(f"input.0.{element}") if head == "output" else None
            if given is not None:
                error, came_in = facts.error_or_zero(row), max([facts.error_or_zero(given), *others])
                explained = _LIST_GAIN * came_in + PLAIN_ROUNDING * facts.roundoff(*facts.tensors(row))
                if error > explained:
                    return ErrorSizes(error, explained, came_in)
        return None

    def _remember_arguments(self, pair: int, error: float) -> None:
        """Remember a call whose arguments differ without effect on its outputs: it may change state that shows later."""
        facts = self.facts
        if not facts.has_telling_arguments(pair):
            return
        finding = facts.finding(ChangesState(), pair, ErrorSizes(error, 0.0))
        module = facts.a.calls.module[finding.target]
        path = facts.a.book.words[module] if module >= 0 else ""
        for name in _RUNNING_STATISTICS:
            label = f"buffers.{path}.{name}" if path else f"buffers.{name}"
            self.state.history.state_changes.setdefault(label, finding)


def _uses(side: Side, role: Ints) -> Ints:
    """Return by how many slots each tensor is read; `ones_like` asks for a shape and does not read what it is given."""
    uses = np.zeros(len(side.tensors.hash), np.int64)
    codes, place = distinct(side.calls.op)
    names = [side.book.words[code] if code >= 0 else "" for code in codes.tolist()]
    overwrites = names_with(Trait.OVERWRITES)
    reads = np.array(
        [operator(name).rounding != Rounding.CREATE and name not in overwrites for name in names], dtype=np.bool_
    )
    given = (role != OUTPUT) & (side.slots.tensor >= 0) & reads[place[side.slots.call]]
    np.add.at(uses, side.slots.tensor[given], 1)
    return uses
