"""What a run does not show by itself: the code between modules, and whether an infinity came to anything."""

from __future__ import annotations

import json
import math

from numscope.check.steps import Call, Slot, Step, read_step
from numscope.nonfinite.rule import SKIPPED_STEP, chooses, is_mask
from numscope.store.reader import Run

_UPDATE = "_amp_update_scale_"  # how GradScaler ends a round

# Operators that ask a question about numbers, and leave the numbers where they are.
_ASKS = frozenset(["isinf", "isnan", "isfinite", "eq", "ne", "gt", "ge", "lt", "le"])


def blame(step: Step, call: Call) -> tuple[Call | None, Call]:
    """Return the module in whose own code a module was called with something wrong, and the outermost so called.

    That is to say where calls between modules were not recorded; for a backward part it is the backward part of the
    module around it, because gradients pass through its code. None: the code outside all modules.
    """
    if not step.modules_only or call.kind != "module":
        return None, call
    calls = {item.order: item for item in step.calls}
    outer = _outer(calls, call)
    while outer is not None and any(_is_wrong(slot, outer.phase) for slot in outer.inputs):
        call, outer = outer, _outer(calls, outer)
    return outer, call


def _outer(calls: dict[int, Call], call: Call) -> Call | None:
    first = calls.get(call.forward) if call.phase == "backward" else None
    if first is None:
        return calls.get(call.parent)
    return next(
        (item for item in calls.values() if item.phase == "backward" and item.forward == first.parent >= 0), None
    )


def _is_wrong(slot: Slot, phase: str) -> bool:
    return not (slot.counts.clean or (phase != "backward" and is_mask(slot.counts)))


def did_harm(step: Step, origin: Call, made: list[Slot]) -> bool:
    """Tell whether infinities that a call made came to anything.

    They did not where no gradient flows through them, and calls only compared them, chose between them and others, or
    turned them into integers, and nothing was left of them: the logarithm of a distance 0, say, that becomes a position.
    """
    if _stays_inside(step, origin, made):
        return False
    if any(slot.counts.nan for slot in made) or _flows(step, origin):
        return True
    bad = {slot.key for slot in made}
    waiting = set(bad)
    for call in step.calls:
        if (
            call.place <= origin.place
            or call.phase == "backward"
            or call.recompute
            or (call.kind == "module" and not step.modules_only)
        ):
            continue
        taken = {slot.key for slot in call.inputs} & bad
        if not taken:
            continue
        waiting -= taken
        passed = [slot for slot in call.outputs if not slot.counts.clean]
        if any(slot.counts.nan for slot in passed) or not (passed or chooses(call.op)):
            return True
        new = {slot.key for slot in passed} - bad
        bad |= new
        waiting |= new
    return bool(waiting)


def _stays_inside(step: Step, origin: Call, made: list[Slot]) -> bool:
    """Tell whether one formula of torch's own makes something non-finite and gives nothing of it away, as the derivative
    of a norm does at 0: the operators of a formula are those of one Python call, or of one autograd node."""
    if origin.kind != "aten":
        return False
    bad = {slot.key for slot in made}
    left = set(bad)  # what no operator has taken yet
    for call in step.calls:
        taken = {slot.key for slot in call.inputs} & bad if call.place > origin.place else set()
        if not taken:
            continue
        if not _same_formula(origin, call):
            return False
        new = {slot.key for slot in call.outputs if not slot.counts.clean} - bad
        left = (left if call.op in _ASKS else left - taken) | new
        bad |= new
    return not left


def _same_formula(one: Call, other: Call) -> bool:
    if one.kind != other.kind:
        return False
    if one.phase != other.phase:  # its own derivative
        return other.phase == "backward" and other.forward == one.order
    return one.forward == other.forward >= 0 if one.phase == "backward" else one.stack == other.stack >= 0


def left_by(call: Call) -> list[Slot]:
    """Return what a call has left that is not finite, less the buffers that were not finite before it."""
    before = {
        f"output.{slot.name}" for slot in call.inputs if slot.name.startswith("buffers.") and not slot.counts.clean
    }
    return [slot for slot in call.outputs if not slot.counts.clean and slot.name not in before]


def is_aside(step: Step, call: Call) -> bool:
    """Tell whether a call is outside all modules, and no gradient flows through what it made."""
    return call.parent < 0 and not _flows(step, call)


def _flows(step: Step, call: Call) -> bool:
    """Tell whether gradients flow through what a call made."""
    back = call.name.replace(".forward", ".backward")
    return any(c.phase == "backward" and (c.forward == call.order or c.name == back) for c in step.calls)


def around_step(step: Step, optimizer: Call, label: str) -> str:
    """Say what a step of one parameter had to do with: the size of its gradient and state, and the settings."""
    told = []
    for slot in optimizer.inputs:
        group, _, name = slot.name.partition(".")
        if group not in ("parameters_grad", "state") or (name != label and not name.startswith(f"{label}.")):
            continue
        facts = step.facts.get(slot.tensor)
        if facts is None or facts.low is None or facts.high is None or not math.isfinite(facts.high - facts.low):
            continue
        what = "its gradient" if group == "parameters_grad" else name.rpartition(".")[2]
        largest = max(abs(facts.low), abs(facts.high))
        told.append(f"{what} is 0" if largest == 0 else f"{what} is {largest:.3g} at most")
    settings = json.loads(optimizer.arguments or "{}").get("kwargs", {})
    if len(settings) == 1 and isinstance(group := next(iter(settings.values())), dict):
        told += [f"{key}={group[key]:g}" for key in ("lr", "eps") if isinstance(group.get(key), (int, float))]
    return f": {', '.join(told)}" if told else ""


def inside_step(step: Step, optimizer: Call) -> str:
    """Say how to have the line inside a step, where the run does not have it."""
    if any(call.kind == "aten" for call in step.calls):
        return ""
    return (
        f"what {optimizer.op or 'it'} runs inside its step is not in a run of this level: a run of --level aten names the "
        "operator, and numscope run --guard the line, where the optimizer is your own"
    )


def gradients_were_left(run: Run, rank: int, step: int) -> bool:
    """Tell whether no optimizer took the gradients of a step: none stepped in it, and the next that did had sound ones.

    This is how a step that a loss scaler skips looks in a dump that does not say so.
    """
    if run.skipped(step, rank).get(SKIPPED_STEP):
        return True
    for number in run.rank_steps(rank):
        if number < step:
            continue
        taken = [call for call in read_step(run, number, rank).calls if call.kind == "optimizer"]
        if taken and all(kept_away(call) for call in taken):
            return True
        if taken:
            gradients = [s for call in taken for s in call.inputs if s.name.startswith("parameters_grad")]
            return number > step and all(slot.counts.clean for slot in gradients)
    return False


def kept_away(optimizer: Call) -> bool:
    """Tell whether an optimizer was given wrong gradients and did not take them: a fused one under a loss scaler."""
    return not optimizer.dirty and any(
        slot.name.startswith("parameters_grad") and not slot.counts.clean for slot in optimizer.inputs
    )


def has_wrong_gradients(step: Step) -> bool:
    return any(
        call.phase == "backward" and not s.counts.clean for call in step.calls for s in call.inputs + call.outputs
    )


def skipped_stretches(step: Step) -> list[tuple[int, int]]:
    """Return the stretches between updates of a loss scale in which no optimizer stepped: what overflowed was skipped."""
    updated = sorted(call.order for call in step.calls if _UPDATE in call.name)
    stepped = [call.order for call in step.calls if call.kind == "optimizer" and not kept_away(call)]
    return [
        (before, order)
        for before, order in zip([0, *updated], updated)
        if not any(before <= at <= order for at in stepped)
    ]
