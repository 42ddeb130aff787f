"""Optimizer steps replayed: one parameter at a time, its state rebuilt from the recorded gradients of earlier steps."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from numscope.core.report import Origin
from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.explain.suspect import explain_tensor
from numscope.diagnose.hypotheses.case import text
from numscope.diagnose.hypotheses.numbers import spoken
from numscope.diagnose.hypotheses.scale import factor
from numscope.diagnose.recorded.evidence import Place
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.pairing import Pairing
from numscope.diagnose.recorded.step_graph import Call, NotKept, Record
from numscope.diagnose.replay.measures import relative, unit_roundoff
from numscope.store.reader import Run

Settings = Mapping[str, Any]
_HOW = {
    "foreach",
    "fused",
    "capturable",
    "differentiable",
    "initial_lr",
    "params",
    "decoupled_weight_decay",
    "parameters",
}
_MOST = 8  # parameters that are replayed


@dataclass(frozen=True)
class History:
    """What one parameter saw: its value and gradient before each step, up to the step in question."""

    values: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor, ...]
    settings: tuple[Settings, ...]  # of each step


def explain(pairs: Pairing, origin: Origin) -> Explanation | None:
    """Explain an optimizer step whose parameters come out differently."""
    row = pairs.row(origin.call, origin.kind)
    if row is None or row["target_order"] is None or row["reference_order"] is None:
        return None
    target, reference = pairs.target.calls[row["target_order"]], pairs.reference.calls[row["reference_order"]]
    details: dict[str, Any] = {}
    for change, edited, kind in _changes(target, reference):
        try:
            if _fits(pairs, target, reference, edited, kind):
                return Explanation("semantic", f"equal to the reference with {change} in {target.name}")
        except (CannotReplay, NotKept) as why:
            details["could_not"] = str(why)
    if (place := _gradient_that_differs(pairs, target, reference)) is not None:
        try:
            found = explain_tensor(pairs, place)
        except (CannotReplay, NotKept) as why:
            return Explanation("unknown", details={**details, "could_not": str(why)})
        if found.mechanism == "semantic" and found.repair:
            return found
        return Explanation(
            "input", found.repair, details={"note": "the gradients that come in differ", **found.details}
        )
    fresh = _state(pairs, target, reference)
    if fresh is not None:
        return fresh
    changes = [change for change, *_ in _changes(target, reference)]
    repair = _scaled(pairs, target, reference)
    if repair is None and len(changes) == 1:
        details["note"] = f"an argument differs, but could not be proven to be it: {changes[0]}"
    if repair is None and not changes and _computes_otherwise(pairs, target, reference):
        details["note"] = "the same parameters and gradients in its first step: the optimizer computes something else"
        return Explanation("semantic", details=details)
    return Explanation("semantic" if repair or changes else "unknown", repair, details=details)


def _computes_otherwise(pairs: Pairing, target: Call, reference: Call) -> bool:
    """Tell whether an optimizer without a history gives something else by far more than rounding."""
    first = min(pairs.target.run.rank_steps(pairs.target.rank), default=0)
    if first != 0 or pairs.target.step != 0:
        return False  # it has a state that was not recorded
    ours, theirs = (r.slots(c.order, "parameters") for r, c in ((pairs.target, target), (pairs.reference, reference)))
    if any(n is None or theirs.get(slot) is None or not pairs.same(n, theirs[slot] or 0) for slot, n in ours.items()):
        return False
    for label in _labels(pairs, target, reference)[:1]:
        a, b = _output(pairs.target, target, label), _output(pairs.reference, reference, label)
        return a is not None and b is not None and relative(a, b) > 100 * unit_roundoff(a.dtype, b.dtype)
    return False


def _groups(call: Call) -> dict[str, dict[str, Any]]:
    return {group: dict(values) for group, values in call.given()["kwargs"].items() if isinstance(values, dict)}


def _changes(target: Call, reference: Call) -> list[tuple[str, dict[str, dict[str, Any]], str]]:
    """Return each setting that differs, in words, with the target's settings after the change, and the class."""
    ours, theirs = _groups(target), _groups(reference)
    found: list[tuple[str, dict[str, dict[str, Any]], str]] = []
    if target.op != reference.op:
        found.append(
            (f"{reference.op} in place of {target.op}{_what_that_means(target, reference)}", ours, reference.op)
        )
    everything = {group: dict(values) for group, values in ours.items()}
    for group, values in ours.items():
        for name, now in values.items():
            then = theirs.get(group, {}).get(name, now)
            if then == now or name in _HOW:
                continue
            edited = {key: dict(item) for key, item in ours.items()}
            edited[group][name] = everything[group][name] = then
            where = f" of parameter group {group}" if len(ours) > 1 else ""
            found.append((f"{name}={text(then)}{where} (now {text(now)})", edited, target.op))
    if len(found) > 1:
        found.append((", ".join(change for change, *_ in found), everything, reference.op))
    return found


def _what_that_means(target: Call, reference: Call) -> str:
    """Return what it means that one optimizer stands in the place of another, where that has a name."""
    decay = next(
        (text(values["weight_decay"]) for values in _groups(target).values() if values.get("weight_decay")), ""
    )
    if (target.op, reference.op) == ("Adam", "AdamW"):
        return f": decoupled weight decay {decay} (now it is added to the gradient)"
    if (target.op, reference.op) == ("AdamW", "Adam"):
        return f": weight decay {decay} added to the gradient (now decoupled from it)"
    return ""


def _fits(pairs: Pairing, target: Call, reference: Call, edited: dict[str, dict[str, Any]], kind: str) -> bool:
    """Tell whether an optimizer with these settings gives the reference's parameters: over what the target saw, with the
    change in this step or in all, or, where rounding parts what the two saw, over what the reference saw."""
    labels = _labels(pairs, target, reference)
    if not labels:
        raise CannotReplay("no parameter's data was kept")
    ways = ((pairs.target, target, False), (pairs.target, target, True), (pairs.reference, reference, True))
    return any(
        _gives(pairs, (target, reference), labels, (record, call), edited, kind, throughout)
        for record, call, throughout in ways
    )


def _gives(
    pairs: Pairing, calls: tuple[Call, Call], labels: list[str], saw: tuple[Record, Call],
    edited: dict[str, dict[str, Any]], kind: str, throughout: bool,
) -> bool:  # fmt: skip
    target, reference = calls
    moved = 0
    for label in labels:
        group = _group_of(pairs, target, reference, label)
        history = _history(*saw, label, group)
        wanted = _output(pairs.reference, reference, label)
        if wanted is None:
            continue
        now = _groups(target)[group]
        change = {key: value for key, value in edited[group].items() if value != now.get(key)}
        before = tuple({**settings, **change} if throughout else settings for settings in history.settings[:-1])
        made = simulate(_class(kind), replace(history, settings=(*before, edited[group])))
        floor = 8 * unit_roundoff(wanted.dtype)
        if relative(made, wanted) > floor:
            return False
        ours = _output(pairs.target, target, label)
        if saw[0] is pairs.reference:
            ours = simulate(_class(target.op), replace(history, settings=(now,) * len(history.settings)))
        moved += ours is not None and relative(ours, wanted) > (floor if saw[0] is pairs.reference else 0)
    return moved > 0


def _labels(pairs: Pairing, target: Call, reference: Call) -> list[str]:
    """Return some parameters, those first that come out most differently."""
    found: list[tuple[float, str]] = []
    for slot in pairs.target.outputs(target.order):
        label = slot.partition(".")[2]
        ours, theirs = _output(pairs.target, target, label), _output(pairs.reference, reference, label)
        if ours is not None and theirs is not None:
            found.append((-relative(ours, theirs), label))
    found.sort()
    # Those that agree too: a change must not move them.
    return [label for _, label in found[:_MOST]] + [label for _, label in found[_MOST:][-2:]]


def _output(record: Record, call: Call, label: str) -> torch.Tensor | None:
    number = record.outputs(call.order).get(f"output.{label}")
    return record.data(number) if number is not None and record.kept(number) else None


def _group_of(pairs: Pairing, target: Call, reference: Call, label: str) -> str:
    """Return the parameter group of a parameter: the one whose settings give what was recorded, in both runs."""
    groups = [group for group in _groups(target) if group in _groups(reference)]
    if len(groups) == 1:
        return groups[0]
    errors = dict.fromkeys(groups, 0.0)
    for record, call in ((pairs.target, target), (pairs.reference, reference)):
        wanted = _output(record, call, label)
        if wanted is None:
            raise CannotReplay(f"the parameter {label} was not kept")
        for group in groups:
            errors[group] += relative(simulate(_class(call.op), _history(record, call, label, group)), wanted)
    return min(errors, key=lambda group: errors[group])


def _history(record: Record, call: Call, label: str, group: str, fresh: bool = False) -> History:
    """Return what a parameter saw in all steps up to this one; with `fresh` in this one alone."""
    values, gradients, settings = [], [], []
    for step in _steps(record.run, record.rank, record.step, fresh):
        here = record if step == record.step else _earlier(record.run, step, record.rank)
        name = call.name
        if name not in here.by_name:
            continue
        made = here.by_name[name]
        slots = here.slots(made.order)
        value, gradient = slots.get(f"parameters.{label}"), slots.get(f"parameters_grad.{label}")
        if value is None or gradient is None:
            if step == record.step:
                raise CannotReplay(f"{label} has no gradient in step {step}")
            continue
        values.append(here.data(value))
        gradients.append(here.data(gradient))
        settings.append(_groups(made).get(group, {}))
    if not values:
        raise CannotReplay("no step of this optimizer was recorded")
    return History(tuple(values), tuple(gradients), tuple(settings))


_RECORDS: dict[tuple[str, int, int], Record] = {}


def _earlier(run: Run, step: int, rank: int) -> Record:
    key = (str(run.path), step, rank)
    if key not in _RECORDS:
        _RECORDS.clear()  # one at a time is enough, and a run may be large
        _RECORDS[key] = Record(run, step, rank)
    return _RECORDS[key]


def _steps(run: Run, rank: int, step: int, fresh: bool) -> list[int]:
    return [step] if fresh else [number for number in run.rank_steps(rank) if number <= step]


def _class(name: str) -> type[torch.optim.Optimizer]:
    found = getattr(torch.optim, name, None)
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise CannotReplay(f"{name} is no optimizer of torch's own: its code is not in the run")
    return found


def simulate(kind: type[torch.optim.Optimizer], history: History) -> torch.Tensor:
    """Run an optimizer over what one parameter saw and return the parameter after the last step."""
    accepted = set(inspect.signature(kind).parameters)
    first = {key: _plain(value) for key, value in history.settings[0].items() if key in accepted and key not in _HOW}
    parameter = torch.nn.Parameter(history.values[0].clone())
    optimizer = kind([parameter], foreach=False, **first) if "foreach" in accepted else kind([parameter], **first)  # type: ignore[call-arg]
    for value, gradient, settings in zip(history.values, history.gradients, history.settings):
        with torch.no_grad():
            parameter.copy_(value)
        parameter.grad = gradient.clone()
        optimizer.param_groups[0].update(
            {
                key: _plain(item)
                for key, item in settings.items()
                if key in optimizer.param_groups[0] and key not in _HOW
            }
        )
        optimizer.step()
    return parameter.detach()


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _gradient_that_differs(pairs: Pairing, target: Call, reference: Call) -> Place | None:
    theirs = pairs.reference.slots(reference.order, "parameters_grad")
    for slot, number in pairs.target.slots(target.order, "parameters_grad").items():
        partner = theirs.get(slot)
        if number is not None and partner is not None and not pairs.same(number, partner):
            return Place(slot, number, partner)
    return None


def _state(pairs: Pairing, target: Call, reference: Call) -> Explanation | None:
    """Tell whether one side started with a fresh state where the other one had its history."""
    try:
        for label in _labels(pairs, target, reference)[:1]:
            kind = _class(target.op)
            ours, theirs = _output(pairs.target, target, label), _output(pairs.reference, reference, label)
            if ours is None or theirs is None:
                return None
            floor = 8 * unit_roundoff(ours.dtype)
            group = _group_of(pairs, target, reference, label)
            with_history = simulate(kind, _history(pairs.target, target, label, group))
            alone = simulate(kind, _history(pairs.target, target, label, group, fresh=True))
            if relative(alone, ours) <= floor and relative(with_history, theirs) <= floor:
                sentence = "equal to the reference with the optimizer's state of the steps before (now it starts fresh)"
                return Explanation("input", sentence)
            if relative(alone, theirs) <= floor and relative(with_history, ours) <= floor:
                return Explanation(
                    "input", "equal to the reference with a fresh optimizer state (now it has a history)"
                )
    except (CannotReplay, NotKept):
        return None
    return None


def _scaled(pairs: Pairing, target: Call, reference: Call) -> str | None:
    """Return the factor between the two sides' updates, where one factor fits all parameters."""
    factors = []
    for label in _labels(pairs, target, reference)[:4]:
        ours, theirs = _output(pairs.target, target, label), _output(pairs.reference, reference, label)
        number = pairs.target.slots(target.order).get(f"parameters.{label}")
        if ours is None or theirs is None or number is None or not pairs.target.kept(number):
            return None
        before = pairs.target.data(number).double()
        a, b = ours.double() - before, theirs.double() - before
        found = factor(a, b)
        if found is None or not float(b.norm()):
            return None
        rounding = 4 * unit_roundoff(ours.dtype) * float(before.norm()) / float(b.norm())
        if relative(a * found, b) > max(1e-4, rounding):
            return None
        factors.append(found)
    if not factors or max(factors) - min(factors) > 1e-3 * abs(factors[0]) or abs(factors[0] - 1) < 1e-6:
        return None
    return f"equal to the reference with a scale factor of {spoken(round(factors[0], 6))} on the update"
