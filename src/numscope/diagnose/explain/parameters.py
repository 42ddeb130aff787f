"""Explains data and parameters that differ before any call, and weights that are tied in one run alone."""

from __future__ import annotations

from numscope.core.errors import NotKeptError
from numscope.core.report import Origin
from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.explain.relation import relation
from numscope.diagnose.recorded.paired_step import PairedStep
from numscope.diagnose.recorded.step_graph import StepGraph


def explain_data(pairs: PairedStep, origin: Origin) -> Explanation:
    """Explain input data that differs."""
    return Explanation("input", _relation(pairs, origin))


def explain_parameter(pairs: PairedStep, origin: Origin) -> Explanation:
    """Explain a parameter or buffer that differs."""
    return Explanation("parameter", _relation(pairs, origin) or _misplaced(pairs, origin))


def _orders(pairs: PairedStep, origin: Origin) -> tuple[int | None, int | None]:
    """Return the orders of the calls that have the data or parameter, in target and reference."""
    pair = pairs.call(origin.call, origin.kind)
    if pair is not None:
        return pair.target_order, pair.reference_order
    return origin.details.get("target_order"), origin.details.get("reference_order")


def _relation(pairs: PairedStep, origin: Origin) -> str | None:
    """Return how the target's data or parameter follows from the reference's."""
    here, there = _orders(pairs, origin)
    if here is None or there is None:
        return None
    ours, theirs = pairs.target.slots(here), pairs.reference.slots(there)
    meant = origin.details.get("slot")
    for slot, number in sorted(ours.items(), key=lambda item: item[0] != meant):
        partner = theirs.get(slot)
        if number is not None and partner is not None and not pairs.same(number, partner):
            return relation(pairs, number, partner)
    return None


def _misplaced(pairs: PairedStep, origin: Origin) -> str | None:
    """Return in words which other parameter of the reference a parameter holds: weights loaded under a wrong name."""
    slot, (here, _) = origin.details.get("slot"), _orders(pairs, origin)
    number = pairs.target.slots(here).get(slot) if here is not None and isinstance(slot, str) else None
    if number is None:
        return None
    names = pairs.reference.parameters_holding(pairs.target.tensors[number].content)
    if not names or origin.call in names or _is_constant(pairs.target, number):
        return None
    return f"equal to the reference with {origin.call} in its place (now it holds {names[0]})"


def explain_tied(pairs: PairedStep) -> Explanation | None:
    """Explain weights that are tied in one run, and separate copies in the other."""
    ours, theirs = _optimized(pairs.target), _optimized(pairs.reference)
    if (found := _copy(pairs.target, ours, theirs)) is not None:
        copy, original = found
        sentence = f"equal to the reference with {copy} tied to {original}: one parameter (now a copy)"
        return Explanation("parameter", sentence)
    if (found := _copy(pairs.reference, theirs, ours)) is not None:
        copy, original = found
        sentence = f"equal to the reference with {copy} as a parameter of its own (now tied to {original})"
        return Explanation("parameter", sentence)
    return None


def _copy(graph: StepGraph, parameters: dict[str, int], others: dict[str, int]) -> tuple[str, str] | None:
    """Return a parameter that the other run lacks, and the parameter of its own run that it is a copy of."""
    for name, number in parameters.items():
        if not others or name in others:
            continue
        content = graph.tensors[number].content
        twins = [twin for twin, n in parameters.items() if twin != name and graph.tensors[n].content == content]
        if len(twins) == 1 and not _is_constant(graph, number):
            return name, twins[0]
    return None


def _is_constant(graph: StepGraph, number: int) -> bool:
    """Tell whether all elements are equal, as in every new norm: equal content is then a coincidence."""
    try:
        values = graph.data(number).reshape(-1)
    except NotKeptError:
        return False
    return bool((values == values[:1]).all())


def _optimized(graph: StepGraph) -> dict[str, int]:
    """Return the tensor of each parameter that the optimizer of a run updates."""
    found: dict[str, int] = {}
    for call in graph.calls.values():
        if call.kind == "optimizer":
            for slot, number in graph.slots(call.order, "parameters").items():
                if number is not None and graph.tensors[number].hash is not None:
                    found.setdefault(slot.removeprefix("parameters."), number)
    return found
