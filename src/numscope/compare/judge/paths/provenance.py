"""Decides whether a tensor that a call is given is right, by its provenance.

A tensor that corresponding calls made is as right as they are. One that nothing recorded made is data, a parameter, or the
work of something that was not recorded. One that lies behind calls which only one side has is compared across that
region (regions.py).
"""

from __future__ import annotations

import numpy as np

from numscope.compare.align.slots import STATE
from numscope.compare.judge.findings import (
    PLAIN_ROUNDING,
    RIGHT,
    ErrorSizes,
    OptimizerOutput,
    Standing,
    Status,
    or_zero,
)
from numscope.compare.judge.paths.regions import RegionCheck
from numscope.compare.judge.reasons import CallReason, DataDiffers, ParameterDiffers, UnrecordedWork
from numscope.compare.judge.rules.gradients import forward_cause, withdraw_parts_of_sum
from numscope.compare.judge.state import State
from numscope.compare.load.side import Side
from numscope.core.dtypes import unit_roundoff

_UNRECORDED_WORK = 16  # unit roundoffs, and times the largest error that rounding explained so far
_INDIRECT = 4  # times as much for a sum of gradients, or for whatever runs between modules
_AFTER_WRONG = 64  # unit roundoffs: no noise excuses what an optimizer has made of something wrong
_SAME_OUTPUT = 32.0  # times the error that came in: two modules compute equal results from equal inputs
_UNKNOWN_OUTPUT = OptimizerOutput(0.0, wrong=True)


class Provenance:
    """Checks tensors by their provenance; each pair of tensors once."""

    def __init__(self, state: State) -> None:
        self.facts, self.state = state.facts, state
        self.regions = RegionCheck(state)
        self._checked: dict[tuple[int, int], Status] = {}

    def check(self, pair: int, row: int) -> Status:
        """Return whether the tensor in a slot is right, follows from something wrong, or is wrong for no known reason."""
        tensors = self.facts.tensors(row)
        if tensors not in self._checked:
            self._checked[tensors] = self._check(pair, row, *tensors)
        return self._checked[tensors]

    def _check(self, pair: int, row: int, t: int, r: int) -> Status:
        facts, state = self.facts, self.state
        error, is_state = facts.error(row), facts.slots.role[row] == STATE
        if error == 0 or (facts.unrelated_sources[row] and not is_state):
            return RIGHT
        if is_state:
            return self._check_state(pair, row, t, r, facts.error_or_zero(row))
        producers = int(facts.flow_a.producer[t]), int(facts.flow_b.producer[r])
        if (producers[0] >= 0 and state.counterpart[t] == r) or np.isnan(error):
            return Status(Standing.TAINTED, int(state.target.cause[t])) if state.target.wrong[t] else RIGHT
        if max(producers) < 0:
            return self._check_source(pair, row, t, r, error)
        return self.regions.check(pair, row)

    # Parameters and buffers -----------------------------------------------------------------------------------------

    def _check_state(self, pair: int, row: int, t: int, r: int, error: float) -> Status:
        facts, state, history = self.facts, self.state, self.state.history
        cause = int(state.target.cause[t])
        if state.counterpart[t] == r and state.target.wrong[t] and self._has_other_arguments(cause):
            return Status(Standing.TAINTED, cause)
        label = self.label(pair, row)
        before = history.parameter_errors.get(label)
        explained = self._explained_of_state(pair, label, t, r)
        if error <= explained:
            history.parameter_errors[label] = max(before or 0.0, error)
            return RIGHT
        if label in history.other_layouts or self._is_laid_out_otherwise(pair, t, r):
            history.other_layouts.add(label)
            return RIGHT
        sizes = ErrorSizes(error, explained)
        remembered = history.state_changes.get(label) or history.late_writes.get(label)
        is_first = before is None and not history.started
        if is_first and not (label in history.state_changes and facts.flow_a.producer[t] >= 0):
            cause = state.blame(ParameterDiffers(), pair, sizes, facts.slot(row))
        elif state.anything_wrong():
            cause = state.first_cause()
        elif remembered is not None:
            cause = state.suspect(remembered, firm=True)
        elif self._is_written_by_one(t, r):
            return self.regions.check(pair, row)
        else:
            cause = state.blame(ParameterDiffers(between_steps=True), pair, sizes, facts.slot(row))
        history.parameter_errors[label] = error
        state.mark_wrong(t, r, error, cause)
        return Status(Standing.TAINTED, cause)

    def _explained_of_state(self, pair: int, label: str, t: int, r: int) -> float:
        """Return how far apart rounding may have left a parameter or buffer."""
        facts, state, history = self.facts, self.state, self.state.history
        if label in history.wrong_parameters and state.anything_wrong():  # its error is known, but excuses nothing
            return PLAIN_ROUNDING * facts.roundoff(t, r)
        # The parameters of a bfloat16 model are its float32 masters, rounded.
        explained = 4 * max(facts.roundoff(t, r), facts.coarser_roundoff)
        explained += 4 * history.parameter_errors.get(label, 0.0)
        if history.started:
            explained += 16 * state.rounding_so_far()
            if history.two_frameworks and label.endswith("running_var"):
                explained += self._bessel_correction(pair, t)
        return explained

    def _bessel_correction(self, pair: int, t: int) -> float:
        """Return the relative difference of a running variance over n, as Paddle's batch norm has it, and over n - 1."""
        facts, elements = self.facts, self.facts.a.tensors.elements
        given = [facts.tensors(row)[0] for row in facts.given(pair) if facts.slot(row) == "input.0"]
        count = max([float(elements[x]) for x in given], default=0.0) / max(float(elements[t]), 1.0)
        return 1.01 / (count - 1.0) if count > 1 else 0.0

    def _is_laid_out_otherwise(self, pair: int, t: int, r: int) -> bool:
        """Return whether two modules of two classes keep a parameter in two layouts.

        It then has another shape, or the modules compute equal results from equal inputs.
        """
        facts = self.facts
        target, reference = facts.calls(pair)
        two_classes = facts.a.calls.module_class[target] != facts.b.calls.module_class[reference]
        if facts.kind(pair) != "module" or not two_classes or self.state.history.diverged:
            return False
        if facts.a.tensors.shape[t] != facts.b.tensors.shape[r]:
            return True
        came_in = or_zero(facts.errors.error_in[pair])
        roundoff = max(float(facts.errors.roundoff[pair]), facts.coarser_roundoff)
        return float(facts.errors.error_out[pair]) <= _SAME_OUTPUT * (came_in + roundoff)

    def _is_written_by_one(self, t: int, r: int) -> bool:
        """Return whether a call of this step, which one side alone has, made a parameter: weights rounded after a step."""
        for (one, status), tensor in zip(self.state.sides, (t, r)):
            producer = int(one.flow.producer[tensor])
            if producer >= 0 and status.partner[producer] < 0:
                return True
        return False

    def _has_other_arguments(self, cause: int) -> bool:
        """Return whether a cause is a call with other arguments: then a parameter that it wrote is no fault of its own."""
        if cause < 0:
            return False
        finding = self.state.suspicions[cause].finding
        return isinstance(finding.reason, CallReason) and bool(finding.differences) and not finding.random

    def label(self, pair: int, row: int) -> str:
        """Return a parameter's or buffer's name over all steps: its module's path and its own."""
        facts = self.facts
        head, _, name = facts.slot(row).partition(".")
        if facts.kind(pair) == "optimizer":
            return f"{head}.{name}"
        return _label(facts.a, int(facts.alignment.target[pair]), head, name)

    # Tensors that nothing recorded made -----------------------------------------------------------------------------

    def _check_source(self, pair: int, row: int, t: int, r: int, error: float) -> Status:
        facts, state = self.facts, self.state
        noise = state.rounding_so_far()
        # Between modules is code that was not recorded, in the run's own precision.
        roundoff = max(facts.roundoff(t, r), facts.coarser_roundoff if facts.modules_only else 0.0)
        explained = _UNRECORDED_WORK * (roundoff + noise)
        updated = state.history.optimizer_outputs.get(int(facts.a.tensors.hash[t]), _UNKNOWN_OUTPUT)
        explained = max(explained, 1.01 * updated.error, 4 * self._error_of_held(r))
        if facts.phase(pair) == "backward" or facts.modules_only:
            explained *= _INDIRECT
        if noise >= 1:  # right tensors have nothing in common any more, nor have results of unrecorded code
            explained = np.inf
        follows = updated.wrong and state.anything_wrong()
        if error <= (_AFTER_WRONG * facts.roundoff(t, r) if follows else explained):
            state.mark_right(t, r, error)
            if facts.is_telling(row):
                withdraw_parts_of_sum(state, pair, error)
            return RIGHT
        sizes = ErrorSizes(error, explained)
        cause = state.first_cause() if follows else None
        if not follows and facts.phase(pair) == "backward":
            cause = forward_cause(state, pair, row, sizes)
        if cause is None:
            reason = DataDiffers() if self._is_data(pair, t) else UnrecordedWork()
            cause = state.blame(reason, pair, sizes, facts.slot(row))
        state.mark_wrong(t, r, error, cause)
        return Status(Standing.TAINTED, cause)

    def _error_of_held(self, r: int) -> float:
        """Return the error of the parameter or buffer that the reference's tensor is.

        The target may have it in shards, or a capture may show it to a function as a tensor of its own.
        """
        side = self.facts.b
        same = np.flatnonzero(side.tensors.measured & (side.tensors.hash == side.tensors.hash[r]))
        rows = side.slots.tensor == r if len(same) < 2 else np.isin(side.slots.tensor, same)
        for row in np.flatnonzero(rows).tolist():
            head, _, name = side.book.words[side.slots.slot[row]].partition(".")
            if head in ("parameters", "buffers"):
                label = _label(side, int(side.slots.call[row]), head, name)
                return self.state.history.parameter_errors.get(label, 0.0)
        return 0.0

    def _is_data(self, pair: int, t: int) -> bool:
        """Return whether a tensor that nothing recorded made can be called data.

        It holds labels, or is given to an outermost call before any module has run.
        """
        facts = self.facts
        if not unit_roundoff(facts.dtype(facts.a, t)):
            return True
        outermost = facts.a.calls.parent[facts.alignment.target[pair]] < 0
        if not outermost or facts.phase(pair) != "forward":
            return False
        kinds = facts.a.calls.kind[facts.alignment.target[:pair]]
        return not bool((kinds == facts.a.book.code("module")).any())


def _label(side: Side, call: int, head: str, name: str) -> str:
    """Return the name of a tensor that a module holds, with the module's path."""
    code = side.calls.module[call]
    path = side.book.words[code] if code >= 0 else ""
    return f"{head}.{path}.{name}" if path else f"{head}.{name}"
