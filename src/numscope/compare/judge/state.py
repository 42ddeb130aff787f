"""The state of judging one step: which tensors and calls were found wrong so far, and because of which suspicion.

Only the methods of State and of Suspicion change it; what never changes is in facts.py.
"""

from __future__ import annotations

import numpy as np

from numscope.compare.align.slots import OUTPUT
from numscope.compare.judge.facts import Facts, OneSide
from numscope.compare.judge.findings import (
    EQUIVALENT,
    IDENTICAL,
    INHERITED,
    NO_CAUSE,
    ErrorSizes,
    Finding,
    History,
    Reason,
    Suspicion,
)
from numscope.compare.load.side import Flags, Ints
from numscope.core.operators import Trait, names_with


class SideState:
    """The state of one side's calls and tensors, by row."""

    def __init__(self, one: OneSide, partner: Ints) -> None:
        calls, tensors = len(one.side.calls), len(one.side.tensors.hash)
        # The corresponding call, -1 for none: unlike the alignment's, a partner does the same job.
        self.partner = np.full(calls, -1)
        self.partner[one.calls] = partner
        # Call → the suspicions of what it was given; such a call does not correspond any more.
        self.suspicions_of: dict[int, list[int]] = {}
        # Calls without counterpart that led to a right result.
        self.cleared: set[int] = set()
        self.wrong = np.zeros(tensors, np.bool_)
        self.cause = np.full(tensors, NO_CAUSE)  # of what is wrong: a suspicion
        self.error = np.zeros(tensors)

    def like_cleared(self, one: OneSide, calls: list[int]) -> set[int]:
        """Return those of some calls that are of an operator on a source line whose calls led to a right result elsewhere."""
        op, stack = one.side.calls.op, one.side.calls.stack
        lines = {(int(op[call]), int(stack[call])) for call in self.cleared if stack[call] >= 0}
        return {call for call in calls if (int(op[call]), int(stack[call])) in lines}


class State:
    """The state of judging the calls of a step one by one."""

    def __init__(self, facts: Facts, history: History) -> None:
        self.facts, self.history = facts, history
        self.suspicions: list[Suspicion] = []
        self.corresponds = facts.corresponding.copy()
        alignment = facts.alignment
        self.target, self.reference = (
            SideState(one, np.where(self.corresponds, other.calls, -1))
            for one, other in (facts.sides, facts.sides[::-1])
        )
        # For each tensor of the target, the reference's tensor that the partner of its producer made, or -1.
        self.counterpart = self._counterparts()
        self.verdict = np.where(facts.errors.identical, IDENTICAL, EQUIVALENT)
        self.cause_of: dict[int, int] = {}  # pair → suspicion
        # The largest error that rounding explained, by phase.
        self.rounding = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0, "input": 0.0}
        assert len(self.verdict) == len(alignment.target)

    def _counterparts(self) -> Ints:
        facts = self.facts
        slots, alignment = facts.slots, facts.alignment
        counterpart = np.full(len(facts.a.tensors.hash), -1)
        made = np.flatnonzero((slots.role == OUTPUT) & self.corresponds[slots.pair])
        by_target = facts.flow_a.producer[slots.a[made]] == alignment.target[slots.pair[made]]
        by_reference = facts.flow_b.producer[slots.b[made]] == alignment.reference[slots.pair[made]]
        rows = made[by_target & by_reference]
        counterpart[slots.a[rows]] = slots.b[rows]
        return counterpart

    # Reading --------------------------------------------------------------------------------------------------------

    @property
    def sides(self) -> tuple[tuple[OneSide, SideState], tuple[OneSide, SideState]]:
        """Each side's facts and its state."""
        target, reference = self.facts.sides
        return (target, self.target), (reference, self.reference)

    def has_open_cause(self, cause: int) -> bool:
        """Return whether a cause was not withdrawn."""
        return cause < 0 or self.suspicions[cause].stands

    def anything_wrong(self) -> bool:
        return self.history.diverged or any(suspicion.stands for suspicion in self.suspicions)

    def first_cause(self) -> int:
        """Return the first suspicion that stands; none where the fault lies in an earlier step."""
        return next((number for number, one in enumerate(self.suspicions) if one.stands), NO_CAUSE)

    def rounding_so_far(self) -> float:
        """Return the largest error that rounding explained so far, in this step and those before it."""
        return max(self.history.noise, *self.rounding.values())

    def wrong_slots(self) -> Flags:
        """Return which slot pairs hold a wrong tensor, by a suspicion that stands."""
        slots = self.facts.slots
        if not len(slots.a):
            return np.zeros(0, np.bool_)
        stands = np.array([suspicion.stands for suspicion in self.suspicions] + [True], dtype=np.bool_)
        wrong = self.target.wrong & stands[self.target.cause]
        return np.asarray(wrong[self.facts.flow_a.same[slots.a]])

    # Suspicions -----------------------------------------------------------------------------------------------------

    def suspect(self, finding: Finding, *, firm: bool, at: int = -1) -> int:
        """Add a suspicion, which arose at the pair `at`, and return its number."""
        failed_at = self.facts.order(at) - 0.5 if at >= 0 else finding.order
        self.suspicions.append(Suspicion(finding, firm, failed_at, last_error=finding.relative, at=at))
        return len(self.suspicions) - 1

    def blame(self, reason: Reason, pair: int, sizes: ErrorSizes, slot: str = "", *, firm: bool = True) -> int:
        """Suspect a pair of calls itself and return the suspicion's number."""
        finding = self.facts.finding_with_evidence(reason, pair, sizes, slot)
        return self.suspect(finding, firm=firm, at=-1 if firm else pair)

    # Verdicts -------------------------------------------------------------------------------------------------------

    def set_verdict(self, pair: int, verdict: int, cause: int) -> None:
        self.verdict[pair] = verdict
        self.cause_of[pair] = cause

    def inherit(self, pair: int, cause: int) -> None:
        """Note that a pair of calls, and all that it made, follows from something wrong."""
        self.set_verdict(pair, INHERITED, cause)
        for row in self.facts.made(pair):
            if self.facts.error(row) != 0:
                self.mark_wrong(*self.facts.tensors(row), self.facts.error_or_zero(row), cause)

    # Tensors --------------------------------------------------------------------------------------------------------

    def mark_wrong(self, t: int, r: int, error: float, cause: int) -> None:
        self.target.wrong[t] = self.reference.wrong[r] = True
        self.target.cause[t] = self.reference.cause[r] = cause
        self.mark_right(t, r, error)

    def mark_right(self, t: int, r: int, error: float) -> None:
        """Note the error of two tensors, which excuses as much in what is made of them."""
        self.target.error[t] = self.reference.error[r] = error

    def note_rounding(self, pair: int, error: float) -> None:
        """Note the size of an error that rounding explains; one that only a flip explains says nothing of rounding."""
        errors = self.facts.errors
        flips = errors.discrete_in[pair] or errors.name[pair] in names_with(Trait.SIGN_LIKE)
        if np.isfinite(error) and not flips:
            phase = self.facts.phase(pair)
            self.rounding[phase] = max(self.rounding[phase], error)

    # Correspondence -------------------------------------------------------------------------------------------------

    def uncouple(self, pair: int, suspicions: list[int]) -> None:
        """Let a pair, whose inputs do not correspond, be judged by where its results lead, with those who use them."""
        target, reference = self.facts.calls(pair)
        if suspicions:
            self.target.suspicions_of[target] = self.reference.suspicions_of[reference] = suspicions
        if not self.corresponds[pair]:
            return
        self.corresponds[pair] = False
        self.target.partner[target] = self.reference.partner[reference] = -1
        for row in self.facts.made(pair):
            self.counterpart[self.facts.slots.a[row]] = -1
        # Backward of calls that do different jobs does, too: its agreement proves nothing here.
        for backward in self.facts.backward_pairs.get(target, ()):
            self.uncouple(backward, [])

    def clear(self, target_calls: tuple[int, ...], reference_calls: tuple[int, ...]) -> None:
        """Note that calls without counterpart led to a right result: they are blamed last."""
        self.target.cleared.update(target_calls)
        self.reference.cleared.update(reference_calls)
