"""Judges an optimizer's step, parameter by parameter: the error of the update against that of the gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numscope.compare.align.optimizer_parameters import has_parameter
from numscope.compare.judge.facts import Facts, OneSide
from numscope.compare.judge.findings import (
    EQUIVALENT,
    IDENTICAL,
    INHERITED,
    ORIGIN,
    ErrorSizes,
    OptimizerOutput,
    Who,
    or_zero,
)
from numscope.compare.judge.paths.provenance import Provenance
from numscope.compare.judge.reasons import UpdateDiffers, UpdatedOnOneSide
from numscope.compare.judge.rules.gradients import cause_of_missing_gradient, withdraw_by_gradients
from numscope.compare.judge.rules.micro_batches import blame_gradients, lost_in_rounding, nothing_but_rounding
from numscope.compare.judge.state import State
from numscope.compare.layouts.whole_step import WholeStep
from numscope.compare.load.side import Side

# Steps proportional to the gradient; all others divide by its size, and turn the sign of a tiny one into a full step.
_SKETCHED = 1.4  # steps are known from sketches, to within 40 %; an exact error knows nothing of theirs
_LINEAR = ("SGD", "ASGD")
_UNKNOWN_ERROR = 1e-4  # of a gradient that cannot be compared: a shard here, the whole there
_NARROW = 2.0**-20  # unit roundoff: above, rounding is as large as many a bug, and agreement proves nothing
_TINY = 1e-300  # stands for a norm of zero under a fraction
_MOST_DRIFT = 1e-4


@dataclass(frozen=True)
class _Update:
    """The step that an optimizer takes with one parameter."""

    label: str
    sizes: ErrorSizes
    slot: str
    who: Who | None = None  # the side that alone updates it

    @property
    def is_wrong(self) -> bool:
        return self.sizes.error > self.sizes.explained

    @property
    def excess(self) -> float:
        return self.sizes.error / max(self.sizes.explained, _TINY)


@dataclass(frozen=True)
class _Rows:
    """The slot pairs of one parameter; None for a slot that the two sides do not both have."""

    before: int | None = None
    gradient: int | None = None
    after: int | None = None


class _Step:
    """One pair of optimizers' steps."""

    def __init__(self, state: State, provenance: Provenance, pair: int) -> None:
        self.state, self.facts, self.provenance, self.pair = state, state.facts, provenance, pair
        self.parameters = _parameters(self.facts, pair)
        self.gradients = [rows.gradient for rows in self.parameters.values() if rows.gradient is not None]
        self.has_other_settings = self.facts.has_telling_arguments(pair) or self._are_of_two_classes()
        self.longest = self._longest_step()

    def judge(self) -> None:
        facts, state, history = self.facts, self.state, self.state.history
        history.optimizer_outputs.clear()
        self._settle_suspicions()
        lost = lost_in_rounding(facts, self.gradients) if self._sums_otherwise() else set[int]()
        nothing = nothing_but_rounding(facts, self.gradients) if self._sums_otherwise() else set[int]()
        names = self._reference_names()
        verdict = IDENTICAL if facts.errors.identical[self.pair] else EQUIVALENT
        wrong: list[_Update] = []
        for label, rows in self.parameters.items():
            if f"parameters.{label}" in history.other_layouts:
                continue
            cause = self._tainted_by(rows, lost)
            if rows.after is None:
                continue
            update = self._update(label, rows, rows.after)
            if update.is_wrong and cause is None and rows.gradient is None and self._has_one_gradient(label):
                cause = self._cause_on_one_side(update)
            t, r = facts.tensors(rows.after)
            left = update.sizes.error
            if np.isnan(facts.error(rows.after)) or (rows.gradient in nothing and self._is_cut(t, r)):
                left = max(left, update.sizes.explained)
            for name in {label, names.get(r, label)}:  # an optimizer of copies knows no names
                self._remember(t, name, left, cause is not None or update.is_wrong)
            if cause is not None:
                verdict = INHERITED
                state.mark_wrong(t, r, update.sizes.error, cause)
                state.cause_of[self.pair] = cause
            elif update.is_wrong:
                wrong.append(update)
        for update in self._updated_on_one_side():
            if self.pair not in state.cause_of:
                state.cause_of[self.pair] = self._cause_on_one_side(update)
            history.wrong_parameters.add(f"parameters.{update.label}")
            verdict = INHERITED
        state.verdict[self.pair] = self._blame(wrong) if wrong else verdict

    def _is_cut(self, t: int, r: int) -> bool:
        """Return whether a parameter was compared by the statistics of its shards: an error may not show in these."""
        sketched = self.facts.a.tensors.sketched[t] and self.facts.b.tensors.sketched[r]
        return self._sums_otherwise() and not sketched

    def _sums_otherwise(self) -> bool:
        """Return whether the two sides add up gradients in other orders: over parts of a batch, or over ranks."""
        return bool(self.facts.batch_shapes) or isinstance(self.facts.a, WholeStep)

    def _settle_suspicions(self) -> None:
        """Withdraw or confirm what is suspected of the step so far, by the gradients that reach the optimizer."""
        facts, state = self.facts, self.state
        order = facts.order(self.pair)
        if self._gradients_are_mostly_unknown():
            withdraw_by_gradients(state, order, unmeasured=True)
        elif self._gradients_agree():
            withdraw_by_gradients(state, order)
        elif self._sums_otherwise() and self.gradients and not state.history.diverged:
            blame_gradients(state, self.pair, self.gradients)

    def _tainted_by(self, rows: _Rows, lost: set[int]) -> int | None:
        """Return the cause that makes a parameter or its gradient wrong before the step."""
        given = [row for row in (rows.before, rows.gradient) if row is not None and row not in lost]
        statuses = [self.provenance.check(self.pair, row) for row in given]
        causes = (status.cause for status in statuses if not status.is_right)
        return next((cause for cause in causes if self.state.has_open_cause(cause)), None)

    def _blame(self, wrong: list[_Update]) -> int:
        """Blame the step for the updates that it made wrong from right gradients; return its verdict."""
        facts, state = self.facts, self.state
        follows = facts.inputs_unrecorded and state.anything_wrong()
        if state.history.diverged or follows:
            state.cause_of.setdefault(self.pair, state.first_cause())
            return INHERITED
        worst = max(wrong, key=lambda update: update.excess)
        cause = state.blame(UpdateDiffers(), self.pair, worst.sizes, worst.slot)
        state.cause_of[self.pair] = cause
        for update in wrong:
            after = self.parameters[update.label].after
            assert after is not None
            state.mark_wrong(*facts.tensors(after), update.sizes.error, cause)
        return ORIGIN

    def _cause_on_one_side(self, update: _Update) -> int:
        """Return the cause of an update, or of a gradient, that one side alone has."""
        state = self.state
        if state.anything_wrong():
            return state.first_cause()
        sizes = update.sizes._replace(came_in=0.0)
        cause = cause_of_missing_gradient(state, self.pair, update.label, sizes)
        if cause is None:
            reason = UpdateDiffers() if update.who is None else UpdatedOnOneSide(update.who)
            return state.blame(reason, self.pair, update.sizes, update.slot)
        return cause

    def _remember(self, t: int, label: str, error: float, wrong: bool) -> None:
        """Remember for the next step how far a parameter is off, and whether by rounding or by a fault."""
        history, name = self.state.history, f"parameters.{label}"
        history.parameter_errors[name] = max(history.parameter_errors.get(name, 0.0), error)
        history.optimizer_outputs[int(self.facts.a.tensors.hash[t])] = OptimizerOutput(error, wrong)
        (history.wrong_parameters.add if wrong else history.wrong_parameters.discard)(name)

    # The two optimizers ---------------------------------------------------------------------------------------------

    def _are_of_two_classes(self) -> bool:
        """Return whether the two optimizers are of two classes: Adam decays gradients, AdamW weights."""
        target, reference = self.facts.calls(self.pair)
        return bool(self.facts.a.calls.op[target] != self.facts.b.calls.op[reference])

    def _reference_names(self) -> dict[int, str]:
        """Return the reference's names of the parameters that its optimizer made, by their tensors."""
        slots, words = self.facts.b.slots, self.facts.b.book.words
        _, call = self.facts.calls(self.pair)
        names = {}
        for row in range(int(slots.start[call]), int(slots.start[call + 1])):
            head, _, label = words[slots.slot[row]].partition(".")
            if head == "output" and slots.tensor[row] >= 0:
                names[int(self.facts.flow_b.same[slots.tensor[row]])] = label
        return names

    def _has_one_gradient(self, label: str) -> bool:
        """Return whether one side alone has a gradient for a parameter."""
        slot = self.facts.a.book.numbers.get(f"parameters_grad.{label}", -1)
        has = []
        for one in self.facts.sides:
            slots, call = one.side.slots, one.calls[self.pair]
            has.append(slot in slots.slot[slots.start[call] : slots.start[call + 1]])
        return any(has) and not all(has)

    def _updated_on_one_side(self) -> list[_Update]:
        """Return the parameters that one side alone updates in this step, that it does move, and that the other has, too."""
        target, reference = self.facts.sides
        return self._updated_by(target, reference.side, 1) + self._updated_by(reference, target.side, 0)

    def _updated_by(self, one: OneSide, other: Side, number_of_other: int) -> list[_Update]:
        slots, words, ranks = one.side.slots, one.side.book.words, self.facts.other_ranks
        rows = one.lone_slots[slots.call[one.lone_slots] == one.calls[self.pair]]
        tensors = {words[slots.slot[row]]: int(slots.tensor[row]) for row in rows.tolist()}
        found = []
        for slot, after in tensors.items():
            head, _, label = slot.partition(".")
            before = tensors.get(f"parameters.{label}", -1)
            if head != "output" or min(before, after) < 0:
                continue
            moved = _distance(one.side, after, before)
            missed = moved > 0 and has_parameter(other, label, one.side, before)
            if missed and not (ranks is not None and ranks.update(number_of_other, label)):
                found.append(_Update(label, ErrorSizes(moved, 0.0), slot, one.who))
        return found

    # The gradients --------------------------------------------------------------------------------------------------

    def _gradients_are_mostly_unknown(self) -> bool:
        """Return whether most of all gradients, by their norm, cannot be compared: shards here, the whole there."""
        if not self.gradients:
            return False
        norms = self.facts.reference_norms(self.gradients)
        known = ~np.isnan([self.facts.error(row) for row in self.gradients])
        return bool(np.linalg.norm(norms[known]) < 0.5 * np.linalg.norm(norms))

    def _gradients_agree(self) -> bool:
        """Return whether all gradients together are the same but for rounding."""
        facts, rows = self.facts, self.gradients
        norms, errors = facts.reference_norms(rows), facts.errors_or_zero(rows)
        total = float(np.linalg.norm(norms))
        if not rows or not total > 0 or not np.isfinite(errors).all():
            return False
        roundoff = max(facts.roundoff(*facts.tensors(row)) for row in rows)
        off = float(np.linalg.norm(norms * errors)) / total
        return roundoff < _NARROW and off <= 32 * roundoff + 2 * self.state.history.noise + 32 * self._drift()

    def _drift(self) -> float:
        """Return how far the optimizer's own rounding has left the parameters apart, all together."""
        left = self.state.history.parameter_errors
        rows = {label: rows.before for label, rows in self.parameters.items() if rows.before is not None}
        norms = self.facts.reference_norms(list(rows.values()))
        errors = np.array([or_zero(left.get(f"parameters.{label}", 0.0)) for label in rows])
        total = float(np.linalg.norm(norms))
        return min(float(np.linalg.norm(norms * errors)) / total, _MOST_DRIFT) if total > 0 else 0.0

    # The updates ----------------------------------------------------------------------------------------------------

    def _update(self, label: str, rows: _Rows, after: int) -> _Update:
        """Return the update of a parameter, and how much of its error the gradient and the parameter before explain."""
        facts, errors = self.facts, self.state.history.parameter_errors
        roundoff = facts.roundoff(*facts.tensors(after))
        gradient = facts.error(rows.gradient) if rows.gradient is not None else 0.0
        gradient = _UNKNOWN_ERROR if np.isnan(gradient) else gradient
        before = facts.error_or_zero(rows.before) if rows.before is not None else 0.0
        # The optimizer's state remembers the gradients of all steps.
        largest = max(gradient, errors.get(f"gradient.{label}", 0.0))
        errors[f"gradient.{label}"] = largest
        moved = self._moved_in_reference(rows)
        name = facts.a.book.words[facts.a.calls.op[facts.alignment.target[self.pair]]].rpartition(".")[2]
        if largest == 0.0:
            allowed = moved * 4e-6
        elif name in _LINEAR:
            allowed = moved * (8.0 * largest + 1e-4)
        else:  # where all signs may be others, the two steps together
            most = 1.5 * max(moved, self._share_of(rows, self.longest))
            measured = 1.02 if self.facts.measures.estimated[self.facts.measures.row_of[after]] else _SKETCHED
            allowed = measured * (moved + min(self._moved_in_target(rows), most))
            allowed = max(allowed, 1.5 * moved)
        explained = 4 * roundoff + 2 * before + allowed
        if self.has_other_settings:  # only what noise in the gradient does by itself is an excuse
            noise = moved * (8.0 * largest + 6.0 * largest**0.5)
            explained = min(explained, 2 * before + 2 * roundoff + noise)
        sizes = ErrorSizes(facts.error_or_zero(after), explained, max(gradient, before))
        return _Update(label, sizes, facts.slot(after))

    def _moved_in_reference(self, rows: _Rows) -> float:
        """Return how far the reference moved a parameter in this step, relative to the parameter after it."""
        if rows.before is None or rows.after is None:
            return 1.0
        _, before = self.facts.tensors(rows.before)
        _, after = self.facts.tensors(rows.after)
        return _distance(self.facts.b, after, before)

    def _moved_in_target(self, rows: _Rows) -> float:
        """Return how far the target moved a parameter in this step, relative to the reference's after it."""
        if rows.before is None or rows.after is None:
            return 1.0
        before, _ = self.facts.tensors(rows.before)
        after, reference = self.facts.tensors(rows.after)
        scale = float(self.facts.a.tensors.l2[after]) / max(float(self.facts.b.tensors.l2[reference]), _TINY)
        return _distance(self.facts.a, after, before) * scale

    def _longest_step(self) -> float:
        """Return the longest step that the reference took with any parameter, per element."""
        steps = [0.0]
        for rows in self.parameters.values():
            if rows.after is not None and rows.before is not None:
                tensors, (_, after) = self.facts.b.tensors, self.facts.tensors(rows.after)
                per_element = float(tensors.l2[after]) / max(float(tensors.elements[after]), 1.0) ** 0.5
                steps.append(self._moved_in_reference(rows) * per_element)
        return max(step for step in steps if not np.isnan(step))

    def _share_of(self, rows: _Rows, step: float) -> float:
        """Return a step per element as a share of the reference's parameter."""
        assert rows.after is not None
        tensors, (_, after) = self.facts.b.tensors, self.facts.tensors(rows.after)
        elements, norm = float(tensors.elements[after]), float(tensors.l2[after])
        return float(step * elements**0.5 / max(norm, _TINY))


def judge_optimizer(state: State, provenance: Provenance, pair: int) -> None:
    """Judge one optimizer step."""
    _Step(state, provenance, pair).judge()


def _parameters(facts: Facts, pair: int) -> dict[str, _Rows]:
    """Return the slot pairs of an optimizer's step by parameter."""
    found: dict[str, dict[str, int]] = {}
    for row in facts.rows(pair):
        head, _, label = facts.slot(row).partition(".")
        found.setdefault(label, {})[head] = row
    return {
        label: _Rows(heads.get("parameters"), heads.get("parameters_grad"), heads.get("output"))
        for label, heads in found.items()
    }


def _distance(side: Side, after: int, before: int) -> float:
    """Return how far two of a side's tensors are apart, relative to the first; 1 where that is not known."""
    tensors = side.tensors
    if not (tensors.sketched[after] and tensors.sketched[before] and tensors.l2[after] > 0):
        return 1.0
    return float(np.linalg.norm(tensors.sketch[after] - tensors.sketch[before]) / tensors.l2[after])
