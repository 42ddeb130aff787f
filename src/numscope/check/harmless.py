"""Tells whether infinities that a call made did harm: a stored step has the calls that followed."""

from __future__ import annotations

from collections.abc import Sequence

from numscope.check.steps import StoredCall, StoredStep, StoredTensor
from numscope.nonfinite.tracker import Doubt

# Operators that ask a question about numbers, and leave the numbers where they are.
_ASKS = frozenset(["isinf", "isnan", "isfinite", "eq", "ne", "gt", "ge", "lt", "le"])


def did_harm(step: StoredStep, origin: StoredCall, made: Sequence[StoredTensor]) -> bool:
    """Tell whether a call's non-finite results did harm in the rest of its step."""
    if _stays_inside(step, origin, made):
        return False
    if any(tensor.counts.nan for tensor in made) or gradients_flow(step, origin):
        return True
    doubt = Doubt(made, _key, contents=True)
    for call in step.calls:
        watched = call.kind != "module" or step.modules_only
        if call.place <= origin.place or call.phase == "backward" or call.recompute or not watched:
            continue
        if doubt.does_harm(call.op, {tensor.key for tensor in call.inputs}, call.nonfinite):
            return True
    return doubt.left_over


def gradients_flow(step: StoredStep, call: StoredCall) -> bool:
    """Tell whether gradients flow through a call's results."""
    back = call.name.replace(".forward", ".backward")
    return any(c.phase == "backward" and (c.forward == call.order or c.name == back) for c in step.calls)


def _key(tensor: StoredTensor) -> object:
    return tensor.key


def _stays_inside(step: StoredStep, origin: StoredCall, made: Sequence[StoredTensor]) -> bool:
    """Tell whether one formula of torch's own makes something non-finite and gives nothing of it away, as the derivative
    of a norm does at 0: the operators of a formula are those of one Python call, or of one autograd node."""
    if origin.kind != "aten":
        return False
    bad = {tensor.key for tensor in made}
    left = set(bad)  # tensors that no operator has taken yet
    for call in step.calls:
        taken = {tensor.key for tensor in call.inputs} & bad if call.place > origin.place else set()
        if not taken:
            continue
        if not _same_formula(origin, call):
            return False
        new = {tensor.key for tensor in call.nonfinite} - bad
        left = (left if call.op in _ASKS else left - taken) | new
        bad |= new
    return not left


def _same_formula(one: StoredCall, other: StoredCall) -> bool:
    if one.kind != other.kind:
        return False
    if one.phase != other.phase:  # its own derivative
        return other.phase == "backward" and other.forward == one.order
    return one.forward == other.forward >= 0 if one.phase == "backward" else one.stack == other.stack >= 0
