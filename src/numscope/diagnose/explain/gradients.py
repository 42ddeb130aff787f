"""Explains gradients that were not zeroed, parameters that are frozen, and gradients that do not flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from numscope.core.errors import NotKeptError
from numscope.core.report import Origin
from numscope.core.words import OriginKind
from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.recorded.paired_step import CallPair, PairedStep
from numscope.diagnose.recorded.step_graph import StepGraph
from numscope.diagnose.replay.calls import forward_slot
from numscope.diagnose.replay.measures import relative_error, to_double, unit_roundoff


def explain(pairs: PairedStep, origin: Origin, explain_call: Callable[[Origin], Explanation]) -> Explanation | None:
    """Explain a suspect of the backward pass, or return None; `explain_call` explains a call of the forward pass."""
    return _left_over(pairs, origin) or _frozen(pairs, origin) or _cut_off(pairs, origin, explain_call)


def _left_over(pairs: PairedStep, origin: Origin) -> Explanation | None:
    """Explain a parameter's gradient that was not zeroed: in one run alone it contains that of the step before."""
    slot, here, there = (origin.details.get(key) for key in ("slot", "target_order", "reference_order"))
    if not isinstance(slot, str) or not slot.startswith("parameters_grad.") or here is None or there is None:
        return None
    call = pairs.target.calls.get(here)
    earlier = [step for step in pairs.target.run.rank_steps(pairs.target.rank) if step < pairs.target.step]
    if call is None or not earlier:
        return None
    before = StepGraph(pairs.target.run, earlier[-1], pairs.target.rank)
    then = before.slots(before.by_name[call.name].order).get(slot) if call.name in before.by_name else None
    mine, other = pairs.target.slots(here).get(slot), pairs.reference.slots(there).get(slot)
    if mine is None or other is None or then is None:
        return None
    try:
        now, wanted, left = pairs.target.data(mine), pairs.reference.data(other), before.data(then)
    except NotKeptError:
        return None
    if now.shape != left.shape or now.shape != wanted.shape:
        return None
    limit = 64 * unit_roundoff(now.dtype, wanted.dtype)
    if relative_error(to_double(now) - to_double(left), to_double(wanted)) <= limit:
        change = f"the gradients zeroed before this step (now those of step {earlier[-1]} are still in them)"
        return Explanation("input", f"equal to the reference with {change}")
    if relative_error(to_double(now) + to_double(left), to_double(wanted)) <= limit:
        change = f"the gradients of step {earlier[-1]} kept and added to (now they are zeroed in between)"
        return Explanation("input", f"equal to the reference with {change}")
    return None


def _frozen(pairs: PairedStep, origin: Origin) -> Explanation | None:
    """Explain a parameter that is frozen: its gradient is made in one run alone."""
    pair = pairs.call(origin.call, origin.kind)
    orders = pair.matched if pair is not None else None
    if orders is None:
        return None
    ours, theirs = pairs.target.outputs(orders.target), pairs.reference.outputs(orders.reference)
    parameter = _parameter_with_gradient(pairs.reference, orders.reference, ours)
    if parameter is not None:
        sentence = f"equal to the reference with a gradient for {parameter} (now it is frozen)"
        return Explanation("semantic", sentence)
    parameter = _parameter_with_gradient(pairs.target, orders.target, theirs)
    if parameter is not None:
        sentence = f"equal to the reference with {parameter} frozen, requires_grad=False (now it has a gradient)"
        return Explanation("semantic", sentence)
    return None


def _parameter_with_gradient(graph: StepGraph, backward: int, others: dict[str, int]) -> str | None:
    """Return the parameter whose gradient a backward call makes and its counterpart, with the outputs `others`, does not."""
    forward = graph.calls[backward].forward
    if forward is None:
        return None
    inputs = graph.slots(forward)
    for slot in graph.outputs(backward):
        number = inputs.get(forward_slot(slot))
        label = None if slot in others or number is None else _parameter_name(graph, number, forward)
        if label is not None:
            return label
    return None


def _parameter_name(graph: StepGraph, number: int, call: int) -> str | None:
    """Return the name of a tensor as a parameter of a module around a call; None where it is not a parameter."""
    outer = graph.calls[call].parent
    while outer is not None:
        for slot, held in graph.slots(outer, "parameters").items():
            if held == number:
                name = slot.removeprefix("parameters.")
                return f"{graph.calls[outer].module}.{name}" if graph.calls[outer].module else name
        outer = graph.calls[outer].parent
    return None


def _cut_off(pairs: PairedStep, origin: Origin, explain_call: Callable[[Origin], Explanation]) -> Explanation | None:
    """Explain a backward call that one run alone has, though both have its forward call.

    A missing gradient shows in later calls too, so the first backward call in the module that one run lacks is at fault.
    """
    pair = pairs.call(origin.call, origin.kind)
    if pair is not None and pair.matched is not None:
        pair = _first_lone_backward(pairs, pair)
    if pair is None:
        return None
    if pair.target_order is None:
        graph, order = pairs.reference, pair.reference_order
        kind: OriginKind = "missing"
    else:
        graph, order = pairs.target, pair.target_order
        kind = "extra"
    call = graph.calls[order] if order is not None else None
    forward = graph.calls.get(call.forward) if call is not None and call.forward is not None else None
    if forward is None:
        return None
    forward_pair = pairs.call(forward.name, "missing" if kind == "missing" else "") or pairs.call(forward.name)
    if forward_pair is None:
        return None
    orders = forward_pair.matched
    if orders is None:  # the forward call itself is missing or extra
        return explain_call(replace(origin, call=forward.name, kind=kind, phase="forward", relative=None))
    if kind == "missing":
        counterpart = pairs.target.calls[orders.target]
        change = (
            f"the gradient flowing through {counterpart.name} "
            "(now its output is detached, or computed without gradient)"
        )
    else:
        change = f"the output of {forward.name} detached (now a gradient flows through it)"
    return Explanation("semantic", f"equal to the reference with {change}")


def _first_lone_backward(pairs: PairedStep, pair: CallPair) -> CallPair | None:
    """Return the first backward call, in the module of a pair and up to the pair, that one run alone has."""
    last = len(pairs.calls) if pair.kind == "module" else pairs.calls.index(pair) + 1
    return next(
        (
            other
            for other in pairs.calls[:last]
            if other.phase == "backward"
            and other.kind == "api"
            and other.matched is None
            and _within(other.module, pair.module)
        ),
        None,
    )


def _within(inner: str | None, outer: str | None) -> bool:
    return not outer or inner == outer or (inner or "").startswith(f"{outer}.")
