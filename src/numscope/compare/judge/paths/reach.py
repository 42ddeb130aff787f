"""Follows what a suspected call made, for as long as the two sides differ: does it reach anything?

Calls whose ways rejoin tensors that agree, before a loss, a gradient, a parameter or a saved tensor, are a rearrangement
and no fault. What nothing reads (a metric) may be a fault, but another that reaches the loss comes before it.
"""

from __future__ import annotations

from enum import Enum
from functools import cached_property

import numpy as np

from numscope.compare.align.slots import OUTPUT
from numscope.compare.judge.facts import OneSide
from numscope.compare.judge.findings import EQUIVALENT, INHERITED, ORIGIN, PLAIN_ROUNDING, Finding, Suspicion
from numscope.compare.judge.reasons import CallReason, ChangesState, GradientOnOneSide, OneSidedCall, WritesInPlace
from numscope.compare.judge.state import State
from numscope.core.dtypes import unit_roundoff
from numscope.core.operators import Rounding, Trait, names_with

_FADED = 0.05  # of an error: one that only fades on the way has not rejoined
_NARROW = 2.0**-20  # unit roundoff: agreement in a narrower format than float32 counts to the bit only
_MOST_CALLS = 5_000  # that are followed
_ENDS = ("optimizer", "save", "collective")


class Reach(Enum):
    """How far the difference that a call makes goes."""

    END = "a loss, a gradient, a parameter or a saved tensor differs because of it"
    NOWHERE = "no recorded call reads it"
    REJOINS = "what is made of it is the same on both sides"


def set_aside(state: State) -> list[Finding]:
    """Withdraw the suspicions of calls that only do the same in another order; return what was suspected of them.

    A suspicion whose difference nothing reads is marked: it comes after those that reach an end.
    """
    facts = state.facts
    if facts.modules_only or facts.inputs_unrecorded:  # what reads a tensor may not have been recorded
        return []
    way = _Way(state)
    reach = {
        number: way.of(one) for number, one in enumerate(state.suspicions) if one.stands and _is_followed(one.finding)
    }
    explained = any(
        one.stands and reach.get(number, Reach.END) is Reach.END for number, one in enumerate(state.suspicions)
    )
    of_gradients = _causes_of_gradients(state)
    rearranged = []
    for number, found in reach.items():
        suspicion = state.suspicions[number]
        harmless = (explained or number not in of_gradients) and not suspicion.finding.has_telling_arguments
        if found is Reach.NOWHERE:
            suspicion.reaches_end = False
        elif found is Reach.REJOINS and harmless:
            rearranged.append(suspicion.finding)
            suspicion.dismiss()
    return rearranged


def _causes_of_gradients(state: State) -> set[int]:
    """Return the suspicions from which a wrong gradient or update follows, whatever the values forward: `detach`."""
    forward = state.facts.a.book.code("forward")
    phases = state.facts.a.calls.phase[state.facts.alignment.target]
    return {
        cause
        for pair, cause in state.cause_of.items()
        if phases[pair] != forward and state.verdict[pair] in (INHERITED, ORIGIN)
    }


def _is_followed(finding: Finding) -> bool:
    """Return whether a finding is about calls of this step whose effect is in what they return."""
    is_call = isinstance(finding.reason, (CallReason, OneSidedCall))
    elsewhere = isinstance(finding.reason, (ChangesState, WritesInPlace, GradientOnOneSide))
    return is_call and not elsewhere and finding.ready is None


class _Way:
    """The ways from suspected calls through calls whose results differ."""

    def __init__(self, state: State) -> None:
        self.facts, self.state = state.facts, state
        self._users: dict[str, dict[int, list[int]]] = {}
        self._gradients: dict[str, dict[int, list[int]]] = {}

    def of(self, suspicion: Suspicion) -> Reach:
        """Return how far the difference of a suspicion goes, from its calls and from where it showed."""
        finding, facts = suspicion.finding, self.facts
        target, reference = facts.sides
        starts = [(target, finding.target)] if finding.target >= 0 else []
        if finding.reference >= 0 and (finding.pair < 0 or not starts):
            starts.append((reference, finding.reference))
        if suspicion.at >= 0:
            starts.append((target, facts.calls(suspicion.at)[0]))
        found = [self._follow(one, call, finding.relative) for one, call in starts]
        return next((reach for reach in (Reach.END, Reach.NOWHERE) if reach in found), Reach.REJOINS)

    def _follow(self, one: OneSide, start: int, error: float) -> Reach:
        stack, seen, dead_end = [start], {start}, False
        while stack:
            call = stack.pop()
            if len(seen) > _MOST_CALLS or self._is_end(one, call):
                return Reach.END
            for tensor in self._wrong_outputs(one, call, error):
                users = [user for user in self._users_of(one).get(tensor, ()) if user > call]
                if not users and self._is_read_unseen(one, call) and not self._is_index(one, tensor):
                    return Reach.END
                if any(self._proves_nothing(one, user) for user in users):
                    return Reach.END
                dead_end |= not users
                further = [user for user in users if user not in seen and not self._agrees(one, user, error)]
                seen.update(further)
                stack += further
            backward = [row for row in self._gradients_of(one).get(call, ()) if row not in seen]
            backward = [
                row for row in backward if not self._agrees(one, row, error) and not self._is_given_wrong(one, row)
            ]
            seen.update(backward)
            stack += backward
        return Reach.NOWHERE if dead_end else Reach.REJOINS

    def _is_given_wrong(self, one: OneSide, call: int) -> bool:
        """Return whether a backward call is given a wrong gradient: what differs behind it may come from elsewhere.

        Where the suspected call itself made that gradient wrong, its results forward lead to the loss.
        """
        status = self.state.target if one.who == "target" else self.state.reference
        return any(bool(status.wrong[tensor]) for tensor in one.flow.inputs(call))

    def _is_end(self, one: OneSide, call: int) -> bool:
        kind = one.side.book.words[one.side.calls.kind[call]]
        return kind in _ENDS or one.side.calls.name(call).startswith(("Save.", "Distributed."))

    def _is_read_unseen(self, one: OneSide, call: int) -> bool:
        """Return whether what nothing reads counts nevertheless: a loss, or the gradient of a leaf; without backward all.

        Where the optimizers' gradients agree, the engine has added up parts of them to the same.
        """
        if not self._has_backward:
            return True
        if one.side.calls.phase[call] == one.side.book.code("backward"):
            return not self._gradients_agree
        return call in self._gradients_of(one)

    def _is_index(self, one: OneSide, tensor: int) -> bool:
        """Return whether a tensor is a whole number that Python reads: what it is for shows in the calls that follow."""
        tensors = one.side.tensors
        return tensors.elements[tensor] == 1 and not unit_roundoff(self.facts.dtype(one.side, tensor))

    @cached_property
    def _has_backward(self) -> bool:
        return any(bool((one.side.calls.phase == one.side.book.code("backward")).any()) for one in self.facts.sides)

    @cached_property
    def _gradients_agree(self) -> bool:
        facts = self.facts
        optimizers = facts.a.calls.kind[facts.alignment.target] == facts.a.book.code("optimizer")
        verdicts = self.state.verdict[optimizers]
        return bool(len(verdicts)) and not bool(np.isin(verdicts, (INHERITED, ORIGIN)).any())

    def _wrong_outputs(self, one: OneSide, call: int, error: float) -> list[int]:
        """Return what a call made, without what agrees."""
        right = {
            (self.facts.tensors(row)[one.who == "reference"])
            for row in (self.facts.made(int(one.pair_of[call])) if one.pair_of[call] >= 0 else ())
            if self._is_right(row, error)
        }
        return [tensor for tensor in dict.fromkeys(one.flow.outputs(call)) if tensor not in right]

    def _proves_nothing(self, one: OneSide, call: int) -> bool:
        """Return whether a call's results agree for another reason: a choice, a sign, a product with a state that is zero."""
        facts, pair = self.facts, int(one.pair_of[call])
        made = facts.made(pair) if pair >= 0 else []
        if not made or any(facts.error(row) != 0 for row in made):
            return False
        operator = one.side.book.words[one.side.calls.op[call]]
        coarse = facts.rounding_class(one.side, call) == Rounding.DISCRETE or operator in names_with(Trait.SIGN_LIKE)
        return coarse or not any(facts.is_telling(row) for row in made)

    def _agrees(self, one: OneSide, call: int, error: float) -> bool:
        """Return whether the results of a call are the same on both sides, but for rounding."""
        pair = int(one.pair_of[call])
        made = self.facts.made(pair) if pair >= 0 else []
        whole = len(made) == len(one.flow.outputs(call))
        return bool(made) and whole and all(self._is_right(row, error) for row in made)

    def _is_right(self, row: int, error: float) -> bool:
        facts = self.facts
        own = facts.error(row)
        if own == 0:
            return True
        roundoff = facts.roundoff(*facts.tensors(row))
        plain = own <= PLAIN_ROUNDING * roundoff and roundoff < _NARROW and own <= _FADED * min(1.0, error)
        explained = bool(self.state.verdict[facts.slots.pair[row]] <= EQUIVALENT)
        return plain or (explained and roundoff < _NARROW and own <= _FADED * min(1.0, error))

    def _users_of(self, one: OneSide) -> dict[int, list[int]]:
        """Return the calls that read each tensor: the innermost ones, or where none does, those around them."""
        if one.who not in self._users:
            slots, calls = one.side.slots, one.side.calls
            given = np.flatnonzero((one.flow.role != OUTPUT) & (slots.tensor >= 0))
            inner, outer = dict[int, list[int]](), dict[int, list[int]]()
            same = one.flow.same[slots.tensor[given]].tolist()
            for tensor, user, leaf in zip(same, slots.call[given].tolist(), calls.children[slots.call[given]] == 0):
                (inner if leaf else outer).setdefault(tensor, []).append(user)
            self._users[one.who] = outer | inner
        return self._users[one.who]

    def _gradients_of(self, one: OneSide) -> dict[int, list[int]]:
        """Return the backward calls of each forward call."""
        if one.who not in self._gradients:
            found: dict[int, list[int]] = {}
            forward = one.side.calls.forward
            for row in np.flatnonzero((forward >= 0) & ~one.side.calls.recompute).tolist():
                found.setdefault(int(forward[row]), []).append(row)
            self._gradients[one.who] = found
        return self._gradients[one.who]
