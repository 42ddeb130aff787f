"""Steps that a loss scaler skipped, as a stored run shows them: an overflow in them is no fault."""

from __future__ import annotations

from typing import NamedTuple

from numscope.check.steps import StoredCall, StoredStep, read_step
from numscope.nonfinite.rule import SKIPPED_STEP
from numscope.store.reader import Run

_UPDATE = "_amp_update_scale_"  # the operator that ends a round of GradScaler


class Stretch(NamedTuple):
    """A stretch of calls, by the order in which they began."""

    first: int
    last: int


def skipped_stretches(step: StoredStep) -> list[Stretch]:
    """Return the stretches between updates of a loss scale in which no optimizer stepped: an overflow there was skipped."""
    updated = sorted(call.order for call in step.calls if _UPDATE in call.name)
    stepped = [call.order for call in step.calls if call.kind == "optimizer" and not _refused(call)]
    return [
        Stretch(before, order)
        for before, order in zip([0, *updated], updated)
        if not any(before <= at <= order for at in stepped)
    ]


def gradients_were_left(run: Run, rank: int, step: int) -> bool:
    """Tell whether no optimizer took the gradients of a step: none stepped in it, and the next step had finite ones.

    A step that a loss scaler skips looks like this in a dump that does not say so.
    """
    if run.skipped(step, rank).get(SKIPPED_STEP):
        return True
    for number in run.rank_steps(rank):
        if number < step:
            continue
        taken = [call for call in read_step(run, number, rank).calls if call.kind == "optimizer"]
        if taken and all(_refused(call) for call in taken):
            return True
        if taken:
            gradients = [tensor for call in taken for tensor in call.inputs if tensor.is_gradient]
            return number > step and all(tensor.counts.clean for tensor in gradients)
    return False


def has_wrong_gradients(step: StoredStep) -> bool:
    """Tell whether a backward part of a step was given, or made, a non-finite gradient."""
    return any(
        call.phase == "backward" and not tensor.counts.clean
        for call in step.calls
        for tensor in call.inputs + call.outputs
    )


def _refused(optimizer: StoredCall) -> bool:
    """Tell whether an optimizer was given wrong gradients and did not take them: a fused one under a loss scaler."""
    return not optimizer.nonfinite and any(
        tensor.is_gradient and not tensor.counts.clean for tensor in optimizer.inputs
    )
