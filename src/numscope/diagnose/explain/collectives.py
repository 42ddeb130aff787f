"""Explains suspects between ranks: a collective that one run alone has, or that gives a different result."""

from __future__ import annotations

from functools import lru_cache

import torch

from numscope.core.errors import NotKeptError
from numscope.core.report import Origin
from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.explain.relation import relation
from numscope.diagnose.hypotheses.collectives import Fit, Ranks, fitting
from numscope.diagnose.recorded.differing_tensors import DifferingTensor, differing_tensors
from numscope.diagnose.recorded.paired_step import PairedStep
from numscope.diagnose.recorded.step_graph import RecordedCall, StepGraph
from numscope.diagnose.replay.measures import relative_error, to_double, unit_roundoff
from numscope.store.reader import Run

_STEPS = 8  # calls between a collective and a tensor that shows its fault
_NOT_COMPARED = ("group_rank", "group_size", "async_op")  # these differ between layouts of the same job


def explain(pairs: PairedStep, origin: Origin) -> Explanation | None:
    """Explain a suspect that is a collective."""
    pair = pairs.call(origin.call, origin.kind)
    if pair is None:
        return None
    theirs = pairs.reference.calls[pair.reference_order] if pair.reference_order is not None else None
    if pair.target_order is None:
        return _missing(pairs, theirs) if theirs is not None else None
    ours = pairs.target.calls[pair.target_order]
    return _extra(pairs, ours, origin) if theirs is None else _in_both(pairs, ours, theirs)


def across_ranks(pairs: PairedStep, tensor: DifferingTensor, of_itself: bool = False) -> Explanation | None:
    """Explain a tensor that differs by the tensors of all ranks of the target; None where they don't explain it.

    These are the inputs of the nearest collective before the tensor. With `of_itself` they are the ranks' tensors in the
    same slot, which shows a reduction that no capture sees: in a compiled extension, or in a wrapper.
    """
    if len(pairs.target.run.ranks) < 2:
        return None
    try:
        if of_itself:
            parts, operation = _same_slot(pairs.target, tensor.target), "all_reduce"
        else:
            call = _nearest(pairs.target, tensor.target)
            if call is None:
                return None
            parts, operation = _inputs(pairs.target, call), _operation(call)
        case = _case(pairs, parts, tensor.target, tensor.reference, operation)
    except NotKeptError:
        return None
    found = fitting(case) if case is not None else None
    maker = pairs.target.producer.get(tensor.target)
    name = pairs.target.calls[maker].name if maker is not None else pairs.target.name_of(tensor.target)
    return _explanation(found, name) if found is not None else None


def _nearest(graph: StepGraph, number: int) -> RecordedCall | None:
    """Return the nearest collective that a tensor was made from, at most `_STEPS` calls away."""
    waiting, seen = [number], {number}
    for _ in range(_STEPS):
        following: list[int] = []
        for tensor in waiting:
            maker = graph.producer.get(tensor)
            if maker is None:
                continue
            if graph.calls[maker].kind == "collective":
                return graph.calls[maker]
            following += [n for n in graph.inputs(maker) if n not in seen]
            seen.update(following)
        waiting = following
    return None


def _in_both(pairs: PairedStep, ours: RecordedCall, theirs: RecordedCall) -> Explanation:
    """Explain a collective that both runs have."""
    if changes := _changes(ours, theirs):
        return Explanation("semantic", f"equal to the reference with {', '.join(changes)} in {ours.name}")
    if (order := _other_order(pairs, ours, theirs)) is not None:
        return Explanation("semantic", order)
    outputs = pairs.reference.outputs(theirs.order)
    for slot, number in pairs.target.outputs(ours.order).items():
        if slot not in outputs or pairs.same(number, outputs[slot]):
            continue
        found = _fit(pairs, ours, number, outputs[slot])
        if found is not None:
            return _explanation(found, ours.name)
        repair = relation(pairs, number, outputs[slot])
        return Explanation("semantic" if repair else "unknown", repair)
    return Explanation.could_not("a collective can't be replayed: its result needs the other ranks")


def _other_order(pairs: PairedStep, ours: RecordedCall, theirs: RecordedCall) -> str | None:
    """Return the repair of a collective that is given the reference's tensors in other places, None for any other."""
    given = pairs.target.slots(ours.order, "input", "kwargs")
    wanted = {
        slot: pairs.reference_to_target.get(number) if number is not None else None
        for slot, number in pairs.reference.slots(theirs.order, "input", "kwargs").items()
    }
    moved = [(slot, given[slot], then) for slot, then in wanted.items() if slot in given and given[slot] != then]
    if not moved or sorted(now or -1 for _, now, _ in moved) != sorted(then or -1 for _, _, then in moved):
        return None
    slot, now, then = moved[0]
    if now is None or then is None:
        return None
    place = f"in this place (now {pairs.target.name_of(now)})"
    return f"equal to the reference with {pairs.target.name_of(then)} {place}: {ours.name}.{slot}"


def _missing(pairs: PairedStep, call: RecordedCall) -> Explanation:
    """Explain a collective that only the reference has, with a proof if the tensors of the target's ranks give one."""
    try:
        proof = _proof_of_missing(pairs, call)
    except NotKeptError:
        proof = ""
    name = f"{_operation(call)} that is missing, {call.name}"
    return Explanation("semantic", f"equal to the reference with the {name}{proof}")


def _proof_of_missing(pairs: PairedStep, call: RecordedCall) -> str:
    """Return in words how the target's ranks together give the outputs of the missing collective; empty if they don't."""
    inputs = [number for number in pairs.reference.slots(call.order, "input").values() if number is not None]
    own = pairs.reference_to_target.get(inputs[0]) if inputs else None
    parts = _same_slot(pairs.target, own) if own is not None else None
    if own is None or parts is None:
        return ""
    cases = [
        _case(pairs, parts, own, number, _operation(call)) for number in pairs.reference.outputs(call.order).values()
    ]
    is_concatenation = len(cases) == len(parts) and all(
        case is not None and relative_error(part, case.reference) <= case.limit for part, case in zip(parts, cases)
    )
    if is_concatenation:
        return f": the parts of {len(parts)} ranks (now each rank has its own alone)"
    found = next((found for case in cases if case is not None and (found := fitting(case)) is not None), None)
    return f": {found.repair.change}" if found is not None else ""


def _extra(pairs: PairedStep, call: RecordedCall, origin: Origin) -> Explanation:
    """Explain a collective that only the target has: it may reduce inputs that were reduced before."""
    repair = f"equal to the reference without the {_operation(call)} {call.name}"
    differing = differing_tensors(pairs, origin)
    for number in pairs.target.outputs(call.order).values():
        for tensor in differing:
            if tensor.target == number:
                found = _fit(pairs, call, number, tensor.reference)
                if found is not None:
                    details = {"hypothesis": found.hypothesis}
                    return Explanation("semantic", f"{repair}: {found.repair.change}", details=details)
    return Explanation("semantic", repair)


def _fit(pairs: PairedStep, call: RecordedCall, made: int, wanted: int) -> Fit | None:
    """Return the hypothesis that gives the wanted output of a collective from its inputs on all ranks."""
    try:
        case = _case(pairs, _inputs(pairs.target, call), made, wanted, _operation(call))
    except NotKeptError:
        return None
    return fitting(case) if case is not None else None


def _inputs(graph: StepGraph, call: RecordedCall) -> list[torch.Tensor] | None:
    """Return the input of a collective on each rank, its shards joined; None where a rank has no such call."""
    found = []
    for other in _all_ranks(graph):
        if call.name not in other.by_name:
            return None
        numbers = [n for n in other.slots(other.by_name[call.name].order, "input").values() if n is not None]
        tensors = [other.data(number) for number in numbers]
        if not tensors or any(tensor.shape[1:] != tensors[0].shape[1:] for tensor in tensors):
            return None
        found.append(torch.cat(tensors) if len(tensors) > 1 and tensors[0].dim() else tensors[0])
    return found


def _explanation(found: Fit, name: str) -> Explanation:
    return Explanation("semantic", f"{found.repair} in {name}", details={"hypothesis": found.hypothesis})


def _case(
    pairs: PairedStep, parts: list[torch.Tensor] | None, target: int, reference: int, operation: str
) -> Ranks | None:
    ranks = pairs.target.run.ranks
    if parts is None or len(parts) != len(ranks) or len(parts) < 2:
        return None
    ours, theirs = pairs.target.data(target), pairs.reference.data(reference)
    if not ours.is_floating_point() or not theirs.is_floating_point():
        return None
    limit = 16 * unit_roundoff(ours.dtype, theirs.dtype)
    rank = ranks.index(pairs.target.rank)
    return Ranks(tuple(map(to_double, parts)), to_double(ours), to_double(theirs), rank, limit, operation)


def _same_slot(graph: StepGraph, number: int) -> list[torch.Tensor] | None:
    """Return the tensors that all ranks have in the slot that holds a tensor on this rank."""
    for order, call in graph.calls.items():
        for slot, found in graph.slots(order).items():
            if found == number:
                parts = []
                for other in _all_ranks(graph):
                    counterpart = other.by_name.get(call.name)
                    slots = other.slots(counterpart.order) if counterpart is not None else {}
                    if slot not in slots:
                        return None
                    if (part := slots[slot]) is not None:
                        parts.append(other.data(part))
                return parts
    return None


def _all_ranks(graph: StepGraph) -> list[StepGraph]:
    return [graph if r == graph.rank else _step_graph(graph.run, graph.step, r) for r in graph.run.ranks]


@lru_cache(maxsize=16)
def _step_graph(run: Run, step: int, rank: int) -> StepGraph:
    return StepGraph(run, step, rank)


def _changes(ours: RecordedCall, theirs: RecordedCall) -> list[str]:
    """Return the arguments that differ, in words."""
    now, then = ours.plain_arguments().kwargs, theirs.plain_arguments().kwargs
    return [
        f"{name}={then.get(name)} (now {now.get(name)})"
        for name in dict.fromkeys([*now, *then])
        if name not in _NOT_COMPARED and now.get(name) != then.get(name)
    ]


def _operation(call: RecordedCall) -> str:
    return call.op.removesuffix("_tensor").removesuffix("_coalesced")
