"""Suspects that are no calls to be replayed: data, parameters, optimizer steps, collectives, gradients that don't flow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numscope.core.report import Origin
from numscope.core.words import OriginKind
from numscope.diagnose.explain import collectives, optimizers, state
from numscope.diagnose.explain.explanation import Explanation, relation
from numscope.diagnose.explain.suspect import explain as explain_call
from numscope.diagnose.recorded.invocation import CannotReplay, decode
from numscope.diagnose.recorded.pairing import Pairing
from numscope.diagnose.recorded.step_graph import NotKept, Record
from numscope.diagnose.replay.calls import writes
from numscope.diagnose.replay.measures import relative, unit_roundoff, wide


def explain(pairs: Pairing, origin: Origin) -> Explanation | None:
    """Return the explanation of a suspect of a special kind, or None where it is an ordinary call."""
    detached = origin.kind == "extra" and ".detach" in origin.call
    if detached or origin.kind in ("parameter", "optimizer") or origin.phase in ("backward", "optimizer"):
        found = untied(pairs)
        if found is not None:
            return found
    if origin.phase == "forward" and ".backward" in str(origin.details.get("shows_in")):
        found = explain_call(pairs, replace(origin, relative=None))  # the error is a gradient's, not what it made
        if found.repair or not detached:
            return found if found.repair else explain_call(pairs, origin)
    if detached:
        return Explanation("semantic", f"equal to the reference without {origin.call}, which stops the gradient")
    for row in _with_other_arguments(pairs, origin):
        found = state.explain(pairs, row["target_order"], row["reference_order"])
        if found is not None:
            return found
    if (found := in_place(pairs, origin)) is not None:
        return found
    if origin.kind == "data":
        return Explanation("input", _relation(pairs, origin))
    if origin.kind == "parameter":
        return Explanation("parameter", _relation(pairs, origin) or _misplaced(pairs, origin))
    if origin.kind == "optimizer" or origin.call.startswith("Optimizer."):
        return optimizers.explain(pairs, origin)
    if origin.call.startswith("Distributed."):
        return collectives.explain(pairs, origin)
    if origin.phase == "backward":
        return accumulated(pairs, origin) or not_asked_for(pairs, origin) or gradient(pairs, origin)
    return None


def _with_other_arguments(pairs: Pairing, origin: Origin) -> list[dict[str, Any]]:
    """Return the rows of a suspect, and of the calls in it where it is a module, that were given other arguments."""
    row = pairs.row(origin.call, origin.kind)
    if row is None:
        return []
    rows = [row]
    if row["kind"] == "module":
        rows += [r for r in pairs.rows if r["kind"] == "api" and r["module"] == row["module"]]
    return [
        r for r in rows if r["arguments_differ"] and r["target_order"] is not None and r["reference_order"] is not None
    ]


def in_place(pairs: Pairing, origin: Origin) -> Explanation | None:
    """Explain a call that gives the right result, but writes it into its input, which is read again later."""
    row = pairs.row(origin.call, origin.kind)
    if row is None or row["kind"] != "api" or row["target_order"] is None or row["reference_order"] is None:
        return None
    ours, theirs = pairs.target.calls[row["target_order"]], pairs.reference.calls[row["reference_order"]]
    outputs = pairs.reference.outputs(theirs.order)
    if not all(pairs.same(n, outputs.get(slot, -1)) for slot, n in pairs.target.outputs(ours.order).items()):
        return None
    try:
        mine, other = decode(pairs.target, ours), decode(pairs.reference, theirs)
    except CannotReplay:
        return None
    if writes(mine) and not writes(other):
        change = f"{other.call.op} out of place, inplace=False (now it overwrites its input, which is read again)"
        return Explanation("semantic", f"equal to the reference with {change} in {ours.name}")
    if writes(other) and not writes(mine):
        change = f"{other.call.op} in place, inplace=True (now its input stays as it is)"
        return Explanation("semantic", f"equal to the reference with {change} in {ours.name}")
    return None


def _relation(pairs: Pairing, origin: Origin) -> str | None:
    """Return how the target's data or parameter follows from the reference's."""
    row = pairs.row(origin.call, origin.kind) or origin.details
    here, there = row.get("target_order"), row.get("reference_order")
    if here is None or there is None:
        return None
    ours, theirs = pairs.target.slots(here), pairs.reference.slots(there)
    meant = origin.details.get("slot")
    for slot, number in sorted(ours.items(), key=lambda item: item[0] != meant):
        partner = theirs.get(slot)
        if number is not None and partner is not None and not pairs.same(number, partner):
            return relation(pairs.target, number, pairs.reference, partner)
    return None


def _misplaced(pairs: Pairing, origin: Origin) -> str | None:
    """Return which other parameter of the reference a parameter holds: a layer that was loaded from the wrong place."""
    row = pairs.row(origin.call, origin.kind) or origin.details
    slot, here = origin.details.get("slot"), row.get("target_order")
    number = pairs.target.slots(here).get(slot) if here is not None and isinstance(slot, str) else None
    if number is None:
        return None
    names = pairs.reference.parameters_of(pairs.target.tensors[number].content)
    if not names or origin.call in names or _is_constant(pairs.target, number):
        return None
    return f"equal to the reference with {origin.call} in its place (now it holds {names[0]})"


def accumulated(pairs: Pairing, origin: Origin) -> Explanation | None:
    """Explain a parameter's gradient that holds, in one run alone, that of the step before: it was not zeroed."""
    slot, here, there = (origin.details.get(key) for key in ("slot", "target_order", "reference_order"))
    if not isinstance(slot, str) or not slot.startswith("parameters_grad.") or here is None or there is None:
        return None
    call = pairs.target.calls.get(here)
    earlier = [step for step in pairs.target.run.rank_steps(pairs.target.rank) if step < pairs.target.step]
    if call is None or not earlier:
        return None
    before = Record(pairs.target.run, earlier[-1], pairs.target.rank)
    then = before.slots(before.by_name[call.name].order).get(slot) if call.name in before.by_name else None
    mine, other = pairs.target.slots(here).get(slot), pairs.reference.slots(there).get(slot)
    if mine is None or other is None or then is None:
        return None
    try:
        now, wanted, left = pairs.target.data(mine), pairs.reference.data(other), before.data(then)
    except NotKept:
        return None
    if now.shape != left.shape or now.shape != wanted.shape:
        return None
    limit = 64 * unit_roundoff(now.dtype, wanted.dtype)
    if relative(wide(now) - wide(left), wide(wanted)) <= limit:
        change = f"the gradients zeroed before this step (now those of step {earlier[-1]} are still in them)"
        return Explanation("input", f"equal to the reference with {change}")
    if relative(wide(now) + wide(left), wide(wanted)) <= limit:
        change = f"the gradients of step {earlier[-1]} kept and added to (now they are zeroed in between)"
        return Explanation("input", f"equal to the reference with {change}")
    return None


def not_asked_for(pairs: Pairing, origin: Origin) -> Explanation | None:
    """Explain a backward call that makes the gradient of a parameter in one run alone: in the other it is frozen."""
    row = pairs.row(origin.call, origin.kind)
    if row is None or row["target_order"] is None or row["reference_order"] is None:
        return None
    here, there = row["target_order"], row["reference_order"]
    for record, order, other, sentence in (
        (pairs.reference, there, pairs.target.outputs(here), "a gradient for {0} (now it is frozen)"),
        (pairs.target, here, pairs.reference.outputs(there), "{0} frozen, requires_grad=False (now it has a gradient)"),
    ):
        forward = record.calls[order].forward
        if forward is None:
            continue
        given = record.slots(forward)
        for slot in record.outputs(order):
            number = given.get(slot.removeprefix("output.")) if "kwargs" in slot else given.get(_given_as(slot))
            label = None if slot in other or number is None else _label(record, number, forward)
            if label is not None:
                return Explanation("semantic", f"equal to the reference with {sentence.format(label)}")
    return None


def _given_as(slot: str) -> str:
    """Return the slot whose gradient an output of a backward call is."""
    return slot.replace("output.", "input.", 1)


def _label(record: Record, number: int, call: int) -> str | None:
    """Return the name of the parameter that a tensor is to the module which a call runs in, None for none."""
    outer = record.calls[call].parent
    while outer is not None:
        for slot, held in record.slots(outer, "parameters").items():
            if held == number:
                name = slot.partition(".")[2]
                return f"{record.calls[outer].module}.{name}" if record.calls[outer].module else name
        outer = record.calls[outer].parent
    return None


def gradient(pairs: Pairing, origin: Origin) -> Explanation | None:
    """Explain a backward call that one run alone has, though both have its forward call.

    A gradient that is missing shows in the calls after it: the one at fault is the first in its module that is missing.
    """
    row = pairs.row(origin.call, origin.kind)
    if row is None:
        return None
    if row["target_order"] is not None and row["reference_order"] is not None:
        place = pairs.rows.index(row)
        around = [
            other
            for other in pairs.rows[: place + 1 if row["kind"] != "module" else len(pairs.rows)]
            if other["phase"] == "backward"
            and other["kind"] == "api"
            and (other["target_order"] is None or other["reference_order"] is None)
            and _within(other["module"], row["module"])
        ]
        if not around:
            return None
        row = around[0]
    side, other = (pairs.reference, pairs.target) if row["target_order"] is None else (pairs.target, pairs.reference)
    order = row["reference_order"] if row["target_order"] is None else row["target_order"]
    call = side.calls[order]
    forward = side.calls.get(call.forward) if call.forward is not None else None
    if forward is None:
        return None
    missing = side is pairs.reference
    twin = pairs.row(forward.name, "missing" if missing else "") or pairs.row(forward.name)
    if twin is None:
        return None
    if twin["target_order"] is None or twin["reference_order"] is None:  # the call itself is missing, or too much
        kind: OriginKind = "missing" if missing else "extra"
        return explain_call(pairs, replace(origin, call=forward.name, kind=kind, phase="forward", relative=None))
    theirs = other.calls[twin["target_order"] if other is pairs.target else twin["reference_order"]]
    if row["target_order"] is None:
        change = (
            f"the gradient flowing through {theirs.name} (now its output is detached, or computed without gradient)"
        )
        return Explanation("semantic", f"equal to the reference with {change}")
    change = f"the output of {forward.name} detached (now a gradient flows through it)"
    return Explanation("semantic", f"equal to the reference with {change}")


def _within(inner: str | None, outer: str | None) -> bool:
    return not outer or inner == outer or (inner or "").startswith(f"{outer}.")


def untied(pairs: Pairing) -> Explanation | None:
    """Explain a parameter that only one run has apart: a copy of another one, where the other run has one for both."""
    ours, theirs = _parameters(pairs.target), _parameters(pairs.reference)
    for record, mine, others, sentence in (
        (pairs.target, ours, theirs, "equal to the reference with {0} tied to {1}: one parameter (now a copy)"),
        (pairs.reference, theirs, ours, "equal to the reference with {0} as a parameter of its own (now tied to {1})"),
    ):
        for label, number in mine.items():
            if not others or label in others:
                continue
            content = record.tensors[number].content
            twins = [name for name, n in mine.items() if name != label and record.tensors[n].content == content]
            if len(twins) == 1 and not _is_constant(record, number):
                return Explanation("parameter", sentence.format(label, twins[0]))
    return None


def _is_constant(record: Record, number: int) -> bool:
    """Tell whether all elements are the same, as those of all new norms are: then a twin means nothing."""
    try:
        values = record.data(number).reshape(-1)
    except NotKept:
        return False
    return bool((values == values[:1]).all())


def _parameters(record: Record) -> dict[str, int]:
    """Return the tensor of each parameter that the optimizer of a run was given."""
    found: dict[str, int] = {}
    for call in record.calls.values():
        if call.kind == "optimizer":
            for slot, number in record.slots(call.order, "parameters").items():
                if number is not None and record.tensors[number].hash is not None:
                    found.setdefault(slot.partition(".")[2], number)
    return found
