"""Is a tensor that a call was given right? Where it came from tells.

A tensor that solid partners made is as right as they are. One that nothing recorded made is data, a parameter, or the
work of something that was not recorded. One that lies behind calls which only one side has is compared across that
region (regions.py).
"""

from __future__ import annotations

import numpy as np

from numscope.compare.align.slots import STATE
from numscope.compare.judge.findings import PLAIN, RIGHT, TAINTED, Made, Status, or_zero
from numscope.compare.judge.ledger import Ledger
from numscope.compare.judge.paths.regions import Regions
from numscope.compare.judge.reasons import CallReason, DataDiffers, ParameterDiffers, UnrecordedWork
from numscope.compare.judge.rules.gradients import forward_cause, heal_parts
from numscope.core.dtypes import unit_roundoff


class Provenance:
    """Checks tensors by where they came from; each pair of tensors once."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.regions = Regions(ledger)
        self._seen: dict[tuple[int, int], Status] = {}

    def check(self, pair: int, row: int) -> Status:
        """Return whether what a slot holds is right, follows from something wrong, or is wrong for no known reason."""
        ledger = self.ledger
        t, r = ledger.tensors(row)
        if (t, r) not in self._seen:
            self._seen[t, r] = self._check(pair, row, t, r)
        return self._seen[t, r]

    def _check(self, pair: int, row: int, t: int, r: int) -> Status:
        ledger = self.ledger
        error = ledger.error(row)
        if error == 0 or (ledger.other_sources[row] and ledger.slots.role[row] != STATE):
            return RIGHT, -1
        if ledger.slots.role[row] == STATE:
            return self._check_state(pair, row, t, r, ledger.size(row))
        maker_a, maker_b = int(ledger.flow_a.producer[t]), int(ledger.flow_b.producer[r])
        if (maker_a >= 0 and ledger.known[t] == r) or np.isnan(error):
            return (TAINTED, int(ledger.cause_a[t])) if ledger.wrong_a[t] else (RIGHT, -1)
        if maker_a < 0 and maker_b < 0:
            return self._check_source(pair, row, t, r, error)
        return self.regions.check(pair, row)

    # Parameters and buffers -----------------------------------------------------------------------------------------

    def _check_state(self, pair: int, row: int, t: int, r: int, error: float) -> Status:
        ledger, history = self.ledger, self.ledger.history
        if ledger.known[t] == r and ledger.wrong_a[t] and self._is_told(int(ledger.cause_a[t])):
            return TAINTED, int(ledger.cause_a[t])
        label = self.label(pair, row)
        known = history.parameters.get(label)
        # Float32 masters of a bfloat16 model hold what bfloat16 left of it.
        explained = 4 * max(ledger.roundoff(t, r), ledger.coarsest) + 4 * (known or 0.0)
        if history.started:
            explained += 16 * max(history.noise, *ledger.worst_right.values())
            if history.two_frameworks and label.endswith("running_var"):
                explained += self._of_one_less(pair, t)
        if label in history.wrong and ledger.anything_wrong():  # its error is known, but it is no excuse
            explained = PLAIN * ledger.roundoff(t, r)
        if error <= explained:
            history.parameters[label] = max(known or 0.0, error)
            return RIGHT, -1
        if label in history.layouts or self._is_laid_out(pair, t, r):
            history.layouts.add(label)
            return RIGHT, -1
        if (
            known is None
            and not history.started
            and not (label in history.arguments and ledger.flow_a.producer[t] >= 0)
        ):
            cause = ledger.find(ParameterDiffers(), pair, error, explained, 0.0, slot=ledger.slot(row))
        elif ledger.anything_wrong():
            cause = ledger.first_cause()
        elif (remembered := history.arguments.get(label) or history.late.get(label)) is not None:
            cause = ledger.suspect(remembered, firm=True)
        elif self._is_written_by_one(t, r):
            return self.regions.check(pair, row)
        else:
            reason = ParameterDiffers(between_steps=True)
            cause = ledger.find(reason, pair, error, explained, 0.0, slot=ledger.slot(row))
        history.parameters[label] = error
        ledger.mark_wrong(t, r, error, cause)
        return TAINTED, cause

    def _of_one_less(self, pair: int, t: int) -> float:
        """Return what it makes whether a variance of n elements was divided by n, as Paddle's batch norm does for the running
        one, or by n - 1, as torch's."""
        tensors = self.ledger.a.tensors
        given = [self.ledger.tensors(row)[0] for row in self.ledger.given(pair) if self.ledger.slot(row) == "input.0"]
        count = max([float(tensors.elements[x]) for x in given], default=0.0) / max(float(tensors.elements[t]), 1.0)
        return 1.01 / (count - 1.0) if count > 1 else 0.0

    def _is_laid_out(self, pair: int, t: int, r: int) -> bool:
        """Return whether two modules of other classes keep a parameter in another layout: it has another shape, or they make
        the same of the same."""
        ledger = self.ledger
        target, reference = int(ledger.alignment.target[pair]), int(ledger.alignment.reference[pair])
        unlike = ledger.a.calls.module_class[target] != ledger.b.calls.module_class[reference]
        if ledger.kind(pair) != "module" or not unlike or ledger.history.diverged:
            return False
        if ledger.a.tensors.shape[t] != ledger.b.tensors.shape[r]:
            return True
        front = or_zero(ledger.errors.error_in[pair])
        out = float(ledger.errors.error_out[pair])
        return out <= 32.0 * (front + max(float(ledger.errors.roundoff[pair]), ledger.coarsest))

    def _is_written_by_one(self, t: int, r: int) -> bool:
        """Return whether a call of this step, which one side alone has, made a parameter: weights rounded after a step."""
        ledger = self.ledger
        makers = (int(ledger.flow_a.producer[t]), ledger.partner_a), (int(ledger.flow_b.producer[r]), ledger.partner_b)
        return any(maker >= 0 and partner[maker] < 0 for maker, partner in makers)

    def _is_told(self, cause: int) -> bool:
        """Return whether a cause is a call of other arguments: then a parameter that it wrote is no fault of its own."""
        finding = self.ledger.suspicions[cause].finding if cause >= 0 else None
        if finding is None or not isinstance(finding.reason, CallReason):
            return False
        return bool(finding.differences) and not finding.random

    def label(self, pair: int, row: int) -> str:
        """Return a parameter's or buffer's name over all steps: its module's path and its own."""
        ledger = self.ledger
        head, _, tail = ledger.slot(row).partition(".")
        if ledger.kind(pair) == "optimizer":
            return f"{head}.{tail}"
        code = ledger.a.calls.module[ledger.alignment.target[pair]]
        path = ledger.a.book.words[code] if code >= 0 else ""
        return f"{head}.{path}.{tail}" if path else f"{head}.{tail}"

    # What nothing recorded made -------------------------------------------------------------------------------------

    def _check_source(self, pair: int, row: int, t: int, r: int, error: float) -> Status:
        ledger = self.ledger
        noise = max(ledger.history.noise, *ledger.worst_right.values())
        # Between modules is code that was not recorded, in the run's own precision.
        explained = 16 * (max(ledger.roundoff(t, r), ledger.coarsest * ledger.coarse) + noise)
        made = ledger.history.tensors.get(int(ledger.a.tensors.hash[t]), Made(0.0, wrong=True))
        explained = max(explained, 1.01 * made.error, 4 * self._left(r))
        if ledger.phase(pair) == "backward" or ledger.coarse:
            explained *= 4  # a sum of gradients, or of whatever runs between modules
        if noise >= 1:  # what is right has nothing in common any more: nor has what unrecorded code makes of it
            explained = np.inf
        wrong = made.wrong and ledger.anything_wrong()
        if error <= (64 * ledger.roundoff(t, r) if wrong else explained):
            ledger.mark_right(t, r, error)
            if ledger.is_telling(row):
                heal_parts(ledger, pair, error)
            return RIGHT, -1
        if wrong:
            cause = ledger.first_cause()
        elif (
            ledger.phase(pair) == "backward"
            and (found := forward_cause(ledger, pair, row, error, explained)) is not None
        ):
            cause = found
        else:
            reason = DataDiffers() if self._is_data(pair, t) else UnrecordedWork()
            cause = ledger.find(reason, pair, error, explained, 0.0, slot=ledger.slot(row))
        ledger.mark_wrong(t, r, error, cause)
        return TAINTED, cause

    def _left(self, r: int) -> float:
        """Return how far apart a parameter or buffer was that the reference's module holds, where the target has it in shards,
        or where a capture shows it to a function as a tensor of its own."""
        ledger, side = self.ledger, self.ledger.b
        same = np.flatnonzero(side.tensors.measured & (side.tensors.hash == side.tensors.hash[r]))
        rows = side.slots.tensor == r if len(same) < 2 else np.isin(side.slots.tensor, same)
        for row in np.flatnonzero(rows).tolist():
            head, _, tail = side.book.words[side.slots.slot[row]].partition(".")
            if head in ("parameters", "buffers"):
                code = side.calls.module[side.slots.call[row]]
                path = side.book.words[code] if code >= 0 else ""
                return ledger.history.parameters.get(f"{head}.{path}.{tail}" if path else f"{head}.{tail}", 0.0)
        return 0.0

    def _is_data(self, pair: int, t: int) -> bool:
        """Return whether a tensor that nothing recorded made can be called data: labels, or given to an outermost call
        that runs before any other has made a rounded number."""
        ledger = self.ledger
        if not unit_roundoff(ledger.dtype(ledger.a, t)):
            return True
        outermost = ledger.a.calls.parent[ledger.alignment.target[pair]] < 0
        return bool(outermost and ledger.phase(pair) == "forward" and not self._made_before(pair))

    def _made_before(self, pair: int) -> bool:
        ledger = self.ledger
        before = ledger.alignment.target[:pair]
        return bool((ledger.a.calls.kind[before] == ledger.a.book.code("module")).any())
