"""Explains calls whose outputs are right, but whose side effects differ: running statistics, a write to an input."""

from __future__ import annotations

import torch

from numscope.core.errors import NotKeptError
from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.hypotheses.arguments import ABSENT, change_words, differing_arguments
from numscope.diagnose.pytree import tree_map
from numscope.diagnose.recorded.invocation import CannotReplay, Invocation, TensorRef, invocation_of
from numscope.diagnose.recorded.paired_step import CallPair, MatchedOrders, PairedStep
from numscope.diagnose.recorded.step_graph import StepGraph
from numscope.diagnose.replay.calls import operator_errors, writes
from numscope.diagnose.replay.measures import relative_error, unit_roundoff


def explain_state(pairs: PairedStep, orders: MatchedOrders) -> Explanation | None:
    """Explain a call with different arguments and equal outputs by the state that it leaves for the next step."""
    ours, theirs = pairs.target.calls[orders.target], pairs.reference.calls[orders.reference]
    try:
        mine, other = invocation_of(pairs.target, ours), invocation_of(pairs.reference, theirs)
        left = _next_state(pairs.reference, theirs.name, other)
    except (CannotReplay, NotKeptError):
        return None
    if not left:
        return None
    for change in differing_arguments(mine, other, pairs.target_to_reference, pairs.reference.data):
        if change.then is ABSENT:
            continue
        try:
            made = written(pairs.target, mine.changed(change.name, change.then))
        except (CannotReplay, NotKeptError):
            continue
        if made and all(position in made and _near(made[position], tensor) for position, tensor in left.items()):
            return Explanation("semantic", f"equal to the reference with {change_words(mine, change)}")
    return None


def _near(made: torch.Tensor, wanted: torch.Tensor) -> bool:
    return relative_error(made, wanted) <= 16 * unit_roundoff(wanted.dtype)


def written(graph: StepGraph, made: Invocation) -> dict[int, torch.Tensor]:
    """Call an invocation and return the tensors that it wrote to, by the position of the argument."""

    def fill(leaf: object) -> object:
        return graph.data(leaf.number).clone() if isinstance(leaf, TensorRef) else leaf

    args = [fill(value) for value in made.args]
    before = [value.clone() if isinstance(value, torch.Tensor) else None for value in args]
    kwargs = tree_map(made.kwargs, fill)
    with operator_errors():
        made.function(*args, **kwargs)
    return {
        index: value
        for index, (value, old) in enumerate(zip(args, before))
        if isinstance(value, torch.Tensor) and old is not None and not torch.equal(value, old)
    }


def _next_state(graph: StepGraph, name: str, made: Invocation) -> dict[int, torch.Tensor]:
    """Return the inputs of the same call in the next step that this call wrote to, by position."""
    later = [step for step in graph.run.rank_steps(graph.rank) if step > graph.step]
    if not later:
        return {}
    following = StepGraph(graph.run, later[0], graph.rank)
    call = following.by_name.get(name)
    if call is None:
        return {}
    slots = following.slots(call.order, "input")
    found = {}
    for index in written(graph, made):
        number = slots.get(f"input.{index}")
        if number is not None and following.kept(number):
            found[index] = following.data(number)
    return found


def explain_in_place(pairs: PairedStep, pair: CallPair) -> Explanation | None:
    """Explain a call with the right result that works in place in one run alone, on an input that is read again later."""
    orders = pair.matched
    if pair.kind != "api" or orders is None:
        return None
    outputs = pairs.reference.outputs(orders.reference)
    made = pairs.target.outputs(orders.target).items()
    if not all(slot in outputs and pairs.same(number, outputs[slot]) for slot, number in made):
        return None
    ours, theirs = pairs.target.calls[orders.target], pairs.reference.calls[orders.reference]
    try:
        mine, other = invocation_of(pairs.target, ours), invocation_of(pairs.reference, theirs)
    except CannotReplay:
        return None
    if writes(mine) and not writes(other):
        change = f"{theirs.op} out of place, inplace=False (now it overwrites its input, which is read again)"
        return Explanation("semantic", f"equal to the reference with {change} in {ours.name}")
    if writes(other) and not writes(mine):
        change = f"{theirs.op} in place, inplace=True (now its input stays as it is)"
        return Explanation("semantic", f"equal to the reference with {change} in {ours.name}")
    return None
