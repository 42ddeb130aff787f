"""Explains a suspect by its recorded calls: the subgraphs of both runs, the lift test, and the repair that fits."""

from __future__ import annotations

from dataclasses import replace

from numscope.core.errors import NotKeptError
from numscope.core.report import Origin
from numscope.core.words import Mechanism
from numscope.diagnose.explain import device, not_replayable
from numscope.diagnose.explain.collectives import across_ranks
from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.explain.relation import relation
from numscope.diagnose.hypotheses import fitting
from numscope.diagnose.hypotheses.case import Case, Fitted, Repair
from numscope.diagnose.hypotheses.wording import spoken
from numscope.diagnose.recorded.differing_tensors import DifferingTensor, differing_tensors
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.paired_step import PairedStep
from numscope.diagnose.recorded.shared_inputs import inputs_in_same_argument, shared_inputs, subgraphs_of
from numscope.diagnose.recorded.step_graph import StepGraph
from numscope.diagnose.recorded.subgraph import Subgraph
from numscope.diagnose.replay.lift import Lift, lift
from numscope.diagnose.replay.outcome import Recorded

MOST_TENSORS = 4  # of a suspect that are explained


def explain(pairs: PairedStep, origin: Origin) -> Explanation:
    """Explain a suspect through the subgraphs of calls that made its tensors."""
    found: list[Explanation] = []
    for tensor in differing_tensors(pairs, origin)[:MOST_TENSORS]:
        if tensor.slot.startswith(("parameters.", "buffers.")):
            found.append(Explanation("parameter", relation(pairs, tensor.target, tensor.reference)))
            continue
        try:
            found.append(explain_tensor(pairs, tensor))
        except (CannotReplay, NotKeptError) as why:
            found.append(Explanation.could_not(why))
    if not found:
        return Explanation.could_not("no tensor of this call differs between the two runs")
    # The subgraph of one tensor may pair calls that do not belong together. Where that of another one, which holds
    # more calls, shows no difference in meaning, there is none.
    pair = pairs.call(origin.call, origin.kind)
    is_matched = pair is not None and pair.matched is not None
    if not is_matched and any(item.mechanism in ("precision", "order") for item in found):
        found = [item for item in found if item.mechanism in ("precision", "order")]
    known = [item for item in found if item.mechanism != "unknown"]
    return next((item for item in known if item.repair), (known or found)[0])


def explain_tensor(pairs: PairedStep, tensor: DifferingTensor) -> Explanation:
    """Explain why the two runs have different tensors in one slot, or raise CannotReplay."""
    target, reference = subgraphs_of(pairs, tensor)
    details: dict[str, object] = {"target": target.call_names(), "reference": reference.call_names()}
    if target.not_replayable or reference.not_replayable:
        reasons = [*target.not_replayable.values(), *reference.not_replayable.values()]
        details["not_replayed"] = list(dict.fromkeys(reasons))
        if (found := not_replayable.explain(pairs, target, reference)) is not None:
            return found.with_details(details)
    if not target.calls and not reference.calls:
        if _has_no_recorded_inputs(pairs.target, target):
            raise CannotReplay(next(iter(target.not_replayable.values())))
        return _from_outside(pairs, tensor, target, reference).with_details(details)
    inputs = shared_inputs(pairs, target, reference)
    if inputs.unlike:
        details["inputs_that_differ"] = inputs.unlike
    figures = lift(target, reference, inputs.target, inputs.reference)
    details["lift"] = figures.to_dict()
    case = Case(target, reference, inputs.target, inputs.reference, figures.floor, figures.floor64, inputs.counterpart)
    found = _explain_lift(pairs, tensor, case, figures, bool(inputs.unlike))
    return replace(found.with_details(details), lift=figures)


def _explain_lift(
    pairs: PairedStep, tensor: DifferingTensor, case: Case, figures: Lift, inputs_differ: bool
) -> Explanation:
    """Explain two subgraphs by the figures of their lift test, and find the repair."""
    mechanism = figures.mechanism()
    if mechanism == "device":
        return device.explain(case.target, case.reference, figures)
    if inputs_differ and not figures.native:
        repair = _relation_of_inputs(pairs, case.target, case.reference)
        return Explanation(_mechanism_of_inputs(pairs, case.target), repair)
    if figures.outcome.target is figures.outcome.reference is Recorded.OFF and mechanism == "unknown":
        return device.neither()
    if not figures.native and not figures.float64:
        # Both sides compute the same on this machine: no change of the calls is needed.
        return Explanation(
            mechanism, details={"note": f"replayed here, both sides give the same{_as_recorded(figures)}"}
        )
    if mechanism == "semantic" and (between := across_ranks(pairs, tensor)) is not None:
        return between
    found = fitting(case) if mechanism in ("semantic", "precision") else None
    if mechanism == "semantic" and (found is None or found.is_vague):
        between = across_ranks(pairs, tensor, of_itself=True)
        if between is not None:
            return between
    repair = str(found) if found else _ratio(pairs, tensor) if mechanism == "semantic" else None
    if mechanism == "order":
        return Explanation(mechanism, repair, details={"note": "the same sums in another order: rounding, not a fault"})
    return Explanation(mechanism, repair, fitted=found.fitted if found else None)


def fits_in(pairs: PairedStep, origin: Origin, fitted: Fitted) -> bool | None:
    """Tell whether a repair with a fitted number holds in another step too; None where nothing there can tell.

    Where the two calls give the same without it, it does not hold.
    """
    differing = differing_tensors(pairs, origin)[:MOST_TENSORS]
    if not differing and pairs.call(origin.call, origin.kind) is not None:
        return False
    for tensor in differing:
        try:
            target, reference = subgraphs_of(pairs, tensor)
            if not target.calls and not reference.calls:
                continue
            inputs = shared_inputs(pairs, target, reference)
            figures = lift(target, reference, inputs.target, inputs.reference)
            case = Case(target, reference, inputs.target, inputs.reference, figures.floor, figures.floor64)
            return case.fits(Repair.giving("", fitted(case)))
        except (CannotReplay, NotKeptError):
            continue
    return None


def _has_no_recorded_inputs(graph: StepGraph, subgraph: Subgraph) -> bool:
    """Tell whether the call that made a tensor cannot be replayed, and none of its inputs was recorded."""
    maker = graph.producer.get(subgraph.output)
    return maker is not None and bool(subgraph.not_replayable) and not graph.slots(maker, "input", "kwargs")


def _relation_of_inputs(pairs: PairedStep, target: Subgraph, reference: Subgraph) -> str | None:
    """Return how the target's inputs follow from the reference's, if all follow in the same way."""
    inputs = list(inputs_in_same_argument(pairs, target, reference))[:8]
    found = {relation(pairs, mine, other) for mine, other in inputs}
    only = found.pop() if len(found) == 1 else None
    return f"{only} on what it is given" if only else None


def _ratio(pairs: PairedStep, tensor: DifferingTensor) -> str | None:
    """Return the factor between the outputs of a call, if each is a single number and all have the same factor."""
    if tensor.target_maker is None or tensor.reference_maker is None:
        return None
    ours, theirs = pairs.target.outputs(tensor.target_maker), pairs.reference.outputs(tensor.reference_maker)
    ratios = []
    for slot, number in ours.items():
        if slot in theirs and pairs.target.kept(number) and pairs.reference.kept(theirs[slot]):
            a, b = pairs.target.data(number), pairs.reference.data(theirs[slot])
            if a.numel() == b.numel() == 1 and a.item():
                ratios.append(b.item() / a.item())
    if len(ratios) < 3 or max(ratios) - min(ratios) > 1e-5 * abs(ratios[0]):
        return None
    return f"equal to the reference with a scale factor of {spoken(sum(ratios) / len(ratios))} on what it is given"


def _as_recorded(figures: Lift) -> str:
    if figures.outcome.target is Recorded.RIGHT:
        return ", and the recorded output is right, within rounding, for its inputs"
    return ""


def _from_outside(pairs: PairedStep, tensor: DifferingTensor, target: Subgraph, reference: Subgraph) -> Explanation:
    """Explain a tensor that no recorded call made: data, a parameter, or random numbers."""
    details: dict[str, object] = {
        "target": pairs.target.name_of(target.output),
        "reference": pairs.reference.name_of(reference.output),
    }
    if (between := across_ranks(pairs, tensor)) is not None:
        return between.with_details(details)
    wanted = pairs.reference_to_target.get(tensor.reference)
    if wanted is not None and tensor.target in pairs.target_to_reference and wanted in pairs.target.producer:
        now, then = pairs.target.name_of(tensor.target), pairs.target.name_of(wanted)
        return Explanation("semantic", f"equal to the reference with {then} in this place (now {now})", details=details)
    repair = relation(pairs, target.output, reference.output)
    suspect = pairs.target.calls.get(tensor.target_maker) if tensor.target_maker is not None else None
    if suspect is not None and suspect.kind == "module" and tensor.slot.startswith("output"):
        details["could_not"] = (
            "no call was recorded inside it: record it with level mix, or in code that can be imported"
        )
        return Explanation("unknown", repair, details=details)
    if tensor.slot.startswith("parameters_grad.") and tensor.target_maker is not None:
        # A suspect's own inputs agree, so something else that adds to this gradient differs.
        details["note"] = "the gradients that come in are the same: another path adds to this one, in one run alone"
        return Explanation("semantic", repair, details=details)
    return Explanation(_mechanism_of_inputs(pairs, target), repair, details=details)


def _mechanism_of_inputs(pairs: PairedStep, target: Subgraph) -> Mechanism:
    """Return the mechanism of a difference that came in from outside: a parameter, or the model's input data."""
    for number in target.inputs:
        if number in pairs.target_to_reference:
            continue
        for order in pairs.target.consumers.get(number, []):
            slots = pairs.target.slots(order)
            if any(found == number and slot.startswith(("parameters.", "buffers.")) for slot, found in slots.items()):
                return "parameter"
    return "input"
