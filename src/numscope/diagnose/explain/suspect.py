"""Explains one suspect: the groups of both runs that it stands for, the lift test, and the repair that fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from numscope.core.report import Origin
from numscope.core.words import Mechanism
from numscope.diagnose.explain.collectives import across_ranks
from numscope.diagnose.explain.explanation import Explanation, relation, replace_details
from numscope.diagnose.explain.not_replayable import opaque
from numscope.diagnose.hypotheses import fitting
from numscope.diagnose.hypotheses.case import Case
from numscope.diagnose.hypotheses.numbers import spoken
from numscope.diagnose.recorded.evidence import Place, places_of
from numscope.diagnose.recorded.group import Common, Group, upstream
from numscope.diagnose.recorded.invocation import CannotReplay, Given
from numscope.diagnose.recorded.pairing import Pairing
from numscope.diagnose.recorded.step_graph import NotKept, Record
from numscope.diagnose.replay.lift import Lift, lift
from numscope.diagnose.replay.measures import unit_roundoff


def explain(pairs: Pairing, origin: Origin) -> Explanation:
    """Explain a suspect that is a call: a module as a unit where that can be, else the groups of calls it stands for."""
    from numscope.diagnose.explain.as_unit import explain_as_unit

    return explain_as_unit(pairs, origin, explain_calls(pairs, origin))


def explain_calls(pairs: Pairing, origin: Origin) -> Explanation:
    """Explain a suspect through the groups of calls it stands for."""
    places, matched = places_of(pairs, origin)
    found: list[Explanation] = []
    for place in places[:4]:
        if place.slot.startswith(("parameters.", "buffers.")):
            found.append(
                Explanation("parameter", relation(pairs.target, place.target, pairs.reference, place.reference))
            )
            continue
        try:
            found.append(explain_tensor(pairs, place))
        except (CannotReplay, NotKept) as why:
            found.append(Explanation("unknown", details={"could_not": str(why)}))
    if not found:
        return Explanation("unknown", details={"could_not": "no tensor of this call differs between the two runs"})
    # The narrow view may pair calls that do not belong together; where the wider one sees no difference in meaning,
    # there is none.
    if not matched and any(item.mechanism in ("precision", "order") for item in found):
        found = [item for item in found if item.mechanism in ("precision", "order")]
    known = [item for item in found if item.mechanism != "unknown"]
    return next((item for item in known if item.repair), (known or found)[0])


def explain_tensor(pairs: Pairing, place: Place) -> Explanation:
    """Explain why two tensors that should be one are not."""
    target, reference = groups(pairs, place)
    details: dict[str, Any] = {"target": target.names(), "reference": reference.names()}
    if target.opaque or reference.opaque:
        details["not_replayed"] = list(dict.fromkeys([*target.opaque.values(), *reference.opaque.values()]))
        if (found := opaque(pairs, target, reference)) is not None:
            return replace_details(found, details)
    if not target.calls and not reference.calls:
        if _is_blind(pairs.target, place.target, target):
            raise CannotReplay(next(iter(target.opaque.values())))
        return replace_details(_from_outside(pairs, place, target, reference), details)
    shared, reference_values, partners, unlike = same_inputs(pairs, target, reference)
    if unlike:
        details["inputs_that_differ"] = unlike
    figures = lift(target, reference, shared, reference_values)
    details["lift"] = figures.to_dict()
    case = Case(target, reference, shared, reference_values, figures.floor, figures.floor64, partners)
    mechanism = figures.mechanism()
    if unlike and not figures.native:
        return Explanation(_of_source(pairs, target), _of_given(pairs, target, reference), details=details)
    if figures.reference_reproduced is False and figures.target_reproduced and not figures.native:
        details["note"] = (
            "the reference's recorded inputs don't give its recorded output: something wrote to them unseen"
        )
        repair = relation(pairs.target, place.target, pairs.reference, place.reference) or _ratio(pairs, place)
        return Explanation("input", repair, details=details)
    if not figures.native and not figures.float64:
        # On this machine both do the same: there is nothing to change in the calls.
        details["note"] = "replayed here, both sides give the same: " + _on_device(figures)
        return Explanation(mechanism, details=details)
    if mechanism == "semantic" and (between := across_ranks(pairs, place)) is not None:
        return replace_details(between, details)
    repair_found = fitting(case) if mechanism in ("semantic", "precision") else None
    if mechanism == "semantic" and (repair_found is None or repair_found.is_vague):
        between = across_ranks(pairs, place, of_itself=True)
        if between is not None:
            return replace_details(between, details)
    if mechanism == "order":
        details["note"] = "the same sums in another order: rounding, not a fault"
    repair = str(repair_found) if repair_found else None
    if repair is None and mechanism == "semantic":
        repair = _ratio(pairs, place)
    return Explanation(mechanism, repair, details=details)


def _is_blind(record: Record, output: int, group: Group) -> bool:
    """Return whether a tensor's maker cannot be replayed for want of its inputs, of which none was recorded."""
    maker = record.producer.get(output)
    return maker is not None and bool(group.opaque) and not record.slots(maker, "input", "kwargs")


def _of_given(pairs: Pairing, target: Group, reference: Group) -> str | None:
    """Return how what the target was given follows from what the reference was given, for one and all."""
    found: set[str | None] = set()
    for mine, other in list(_assumed(pairs, target, reference))[:8]:
        told = relation(pairs.target, mine, pairs.reference, other)
        found.add(told)
    only = found.pop() if len(found) == 1 else None
    return f"{only} on what it is given" if only else None


def _ratio(pairs: Pairing, place: Place) -> str | None:
    """Return the factor between all outputs of a call, where each is one number and the factor is one for all."""
    if place.target_maker is None or place.reference_maker is None:
        return None
    ours, theirs = pairs.target.outputs(place.target_maker), pairs.reference.outputs(place.reference_maker)
    ratios = []
    for slot, number in ours.items():
        if slot in theirs and pairs.target.kept(number) and pairs.reference.kept(theirs[slot]):
            a, b = pairs.target.data(number), pairs.reference.data(theirs[slot])
            if a.numel() == b.numel() == 1 and a.item():
                ratios.append(b.item() / a.item())
    if len(ratios) < 3 or max(ratios) - min(ratios) > 1e-5 * abs(ratios[0]):
        return None
    return f"equal to the reference with a scale factor of {spoken(sum(ratios) / len(ratios))} on what it is given"


def _on_device(figures: Lift) -> str:
    if figures.target_reproduced is False:
        return "the target's own output is not what its inputs give; reroute it with to_cpu to prove it"
    return "its output is right, within rounding, for its inputs"


def groups(pairs: Pairing, place: Place) -> tuple[Group, Group]:
    """Return the two groups that made the two tensors at a place."""
    return (
        _group(pairs.target, place.target, pairs.here, place.target_maker),
        _group(pairs.reference, place.reference, pairs.there, place.reference_maker),
    )


def _group(record: Record, output: int, common: Common, maker: int | None) -> Group:
    """Return the group of a tensor; the suspect itself belongs to it where it made the tensor."""
    return upstream(record, output, common, forced=maker is not None and record.producer.get(output) == maker)


def same_inputs(
    pairs: Pairing, target: Group, reference: Group
) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor], dict[int, int], list[str]]:
    """Return the same values for both groups' inputs, the target's tensors' partners, and the inputs that have none.

    Where the two sides have an input in other dtypes, both get the values of the narrower one: the wider one holds
    digits that the other side never saw.
    """
    partners = dict(pairs.here.partner)
    for mine, other in _assumed(pairs, target, reference):
        partners.setdefault(mine, other)
    shared: dict[int, torch.Tensor] = {}
    values: dict[int, torch.Tensor] = {}
    unlike = []
    for number in reference.inputs:
        if number not in pairs.there.partner:
            unlike.append(f"{pairs.reference.name_of(number)} of the reference")
    for number in target.inputs:
        partner = partners.get(number)
        ours = pairs.target.tensors[number]
        if partner is None or pairs.reference.tensors[partner].shape != ours.shape:
            unlike.append(pairs.target.name_of(number))
            continue
        if number not in pairs.here.partner:
            unlike.append(pairs.target.name_of(number))
        a, b = _data(pairs.target, number), _data(pairs.reference, partner)
        if a is None or b is None:
            continue
        narrow = a if unit_roundoff(a.dtype) > unit_roundoff(b.dtype) else b
        shared[number] = narrow.to(a.dtype) if a.dtype != narrow.dtype else narrow
        values[partner] = narrow.to(b.dtype) if b.dtype != narrow.dtype else narrow
    return shared, values, partners, unlike


def _data(record: Record, number: int) -> torch.Tensor | None:
    return record.data(number) if record.kept(number) else None


def _assumed(pairs: Pairing, target: Group, reference: Group) -> Iterator[tuple[int, int]]:
    """Yield inputs that stand in the same place of paired calls, though their values differ."""
    case = Case(target, reference, {}, {}, 0.0, 0.0)
    try:
        paired = list(case.paired())
    except CannotReplay:
        return
    for ours, theirs in paired:
        for a, b in _given_pairs(ours.args, theirs.args):
            uncommon = a.number not in pairs.here.partner and b.number not in pairs.there.partner
            if uncommon and a.number in target.inputs and b.number in reference.inputs:
                yield a.number, b.number


def _given_pairs(ours: Any, theirs: Any) -> Iterator[tuple[Given, Given]]:
    """Yield the recorded tensors that stand in the same place of two calls' arguments, those in lists too."""
    if isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)):
        for a, b in zip(ours, theirs):
            yield from _given_pairs(a, b)
    elif isinstance(ours, Given) and isinstance(theirs, Given):
        yield ours, theirs


def _from_outside(pairs: Pairing, place: Place, target: Group, reference: Group) -> Explanation:
    """Explain a tensor that no recorded call made: it came in from outside, or was drawn, or is a parameter."""
    details: dict[str, Any] = {
        "target": pairs.target.name_of(target.output),
        "reference": pairs.reference.name_of(reference.output),
    }
    if (between := across_ranks(pairs, place)) is not None:
        return replace_details(between, details)
    wanted = pairs.there.partner.get(place.reference)
    if wanted is not None and place.target in pairs.here and wanted in pairs.target.producer:
        now, then = pairs.target.name_of(place.target), pairs.target.name_of(wanted)
        return Explanation("semantic", f"equal to the reference with {then} in this place (now {now})", details=details)
    repair = relation(pairs.target, target.output, pairs.reference, reference.output)
    suspect = pairs.target.calls.get(place.target_maker) if place.target_maker is not None else None
    if suspect is not None and suspect.kind == "module" and place.slot.startswith("output"):
        details["could_not"] = (
            "no call was recorded inside it: record it with level mix, or in code that can be imported"
        )
        return Explanation("unknown", repair, details=details)
    if place.slot.startswith("parameters_grad.") and place.target_maker is not None:
        # The suspect's own inputs agree, or it would be none: what else adds to this gradient is not the same.
        details["note"] = "the gradients that come in are the same: another path adds to this one, in one run alone"
        return Explanation("semantic", repair, details=details)
    return Explanation(_of_source(pairs, target), repair, details=details)


def _of_source(pairs: Pairing, target: Group) -> Mechanism:
    """Return what a difference that came in is: in a parameter, or in what the model was fed."""
    for number in target.inputs:
        if number in pairs.here.partner:
            continue
        for order in pairs.target.consumers.get(number, []):
            slots = pairs.target.slots(order)
            if any(found == number and slot.startswith(("parameters.", "buffers.")) for slot, found in slots.items()):
                return "parameter"
    return "input"
