"""The tensors that show a suspect: its outputs or, where one run alone has it, the inputs of later calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from numscope.core.report import Origin
from numscope.diagnose.recorded.paired_step import CallPair, MatchedOrders, PairedStep
from numscope.diagnose.recorded.step_graph import StepGraph


@dataclass(frozen=True)
class DifferingTensor:
    """One slot that holds different tensors in the two runs; tensors are numbers of their step."""

    slot: str
    target: int
    reference: int
    target_maker: int | None = None  # the order of the suspect, if it made the tensor
    reference_maker: int | None = None


def differing_tensors(pairs: PairedStep, origin: Origin) -> list[DifferingTensor]:
    """Return the tensors that show a suspect, the clearest first."""
    pair = pairs.call(origin.call, origin.kind)
    if pair is None:
        return []
    if (orders := pair.matched) is not None:
        return _differing_outputs(pairs, orders)
    return list(_shown_later(pairs, pair, origin.relative))


def _differing_outputs(pairs: PairedStep, orders: MatchedOrders) -> list[DifferingTensor]:
    """Return the outputs in which the two calls of a pair differ."""
    ours = _slots(pairs.target, orders.target, "output", "parameters_grad")
    theirs = _slots(pairs.reference, orders.reference, "output", "parameters_grad")
    makers = pairs.target.outermost_wrapper(orders.target), pairs.reference.outermost_wrapper(orders.reference)
    found = [
        DifferingTensor(slot, number, theirs[slot], *makers)
        for slot, number in ours.items()
        if slot in theirs and not pairs.bitwise(number, theirs[slot])
    ]
    # A fault can hide in rounding, so all tensors that differ are candidates; those beyond rounding come first.
    return sorted(found, key=lambda tensor: pairs.same(tensor.target, tensor.reference))


def _shown_later(pairs: PairedStep, pair: CallPair, error: float | None) -> Iterator[DifferingTensor]:
    """Yield the tensors that show a call of one run alone: inputs of a later call, and outputs of its module.

    `error` is the error that the comparison gives for the call: the tensor with exactly this error comes first.
    """
    first: list[DifferingTensor] = []
    meant: list[DifferingTensor] = []
    for later in pairs.calls[pairs.calls.index(pair) + 1 :]:
        if (orders := later.matched) is None:
            continue
        ours, theirs = _slots(pairs.target, orders.target), _slots(pairs.reference, orders.reference)
        differing = [
            DifferingTensor(slot, number, theirs[slot])
            for slot, number in ours.items()
            if slot in theirs and not pairs.same(number, theirs[slot])
        ]
        inputs = [tensor for tensor in differing if not tensor.slot.startswith("output")]
        inputs.sort(key=lambda tensor: not tensor.slot.startswith("parameters."))  # a weight that differs comes first
        if later.kind == "module":
            differing = []  # a module's row is at the module's start: its outputs are made later
        if not first:
            first = (inputs or differing)[:2]
        meant = [t for t in differing if error and _close(pairs.error_of(later, t.slot), error)][:1]
        if first and (meant or not error):
            break
    if not any(tensor.slot.startswith("parameters.") for tensor in first):
        yield from meant
    yield from first
    for other in pairs.calls:
        is_enclosing = other.kind == "module" and other.module == pair.module and other.phase == pair.phase
        if is_enclosing and pair.module and (orders := other.matched) is not None:
            for tensor in _differing_outputs(pairs, orders):
                if tensor.slot.startswith("output"):
                    yield DifferingTensor(tensor.slot, tensor.target, tensor.reference)


def _close(found: float | None, wanted: float) -> bool:
    return found is not None and abs(found - wanted) <= 1e-6 * abs(wanted)


def _slots(graph: StepGraph, order: int, *groups: str) -> dict[str, int]:
    return {slot: number for slot, number in graph.slots(order, *groups).items() if number is not None}
