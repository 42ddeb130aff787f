"""An argument that the two calls don't share: the first thing to try."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis, operator, text
from numscope.diagnose.hypotheses.numbers import spoken
from numscope.diagnose.recorded.invocation import NO_DEFAULT, Given, Invocation

_ABSENT = object()
_SCALES = {"mul", "div", "rdiv"}


@hypothesis("argument")
def argument(case: Case) -> Iterator[Repair]:
    """Give the target's call the reference's argument: eps, approximate, dim, scale, is_causal, training …"""
    for target, reference in case.paired():
        changes = differing(case, target, reference)
        whole = target
        for name, _, then in changes:
            edited = _set(target, name, then)
            whole = _set(whole, name, then)
            yield Repair(_change(target, changes, name), _run(case, target, edited))
        if len(changes) > 1:
            together = ", ".join(_change(target, changes, name) for name, *_ in changes)
            yield Repair(together, _run(case, target, whole))


@hypothesis("every argument")
def every_argument(case: Case) -> Iterator[Repair]:
    """Give all of the target's calls the reference's arguments at once."""
    edits: dict[int, Invocation] = {}
    said: list[str] = []
    for target, reference in case.paired():
        changes = differing(case, target, reference)
        edited = target
        for name, _, then in changes:
            edited = _set(edited, name, then)
            said.append(_change(target, changes, name))
        if changes:
            edits[_order(case, target)] = edited
    if len(edits) > 1:
        yield Repair(", ".join(dict.fromkeys(said)), lambda: case.edited(edits))


def _run(case: Case, target: Invocation, edited: Invocation) -> Any:
    return lambda: case.edited({_order(case, target): edited})


def _order(case: Case, made: Invocation) -> int:
    """Return the order of the group's call that an invocation belongs to: of the backward call where it is one."""
    return next(order for order, other in case.target_calls.items() if other is made)


def differing(case: Case, target: Invocation, reference: Invocation) -> list[tuple[str, Any, Any]]:
    """Return (name, target's value, reference's value) of the arguments that differ, defaults filled in."""
    now, then = with_defaults(target), with_defaults(reference)
    found = []
    back = {there: here for here, there in case.reference_number.items()}
    for name in dict.fromkeys([*now, *then]):
        a, b = now.get(name, _ABSENT), then.get(name, _ABSENT)
        if holds_given(a) and holds_given(b):
            continue  # tensors: another family's
        if isinstance(b, Given):
            b = Given(back[b.number]) if b.number in back else _value_there(case, b.number)
        if holds_given(a) and b is _ABSENT:
            continue
        if not _same(a, b):
            found.append((name, a, b))
    return found


def _value_there(case: Case, number: int) -> Any:
    """Return a tensor that the reference alone has, as it can be given to the target: a number, or its data."""
    record = case.reference.record
    found = case.reference_values[number] if number in case.reference_values else record.data(number)
    return found.item() if found.dim() == 0 else found


def argument_words(target: Invocation, reference: Invocation) -> list[str]:
    """Return the arguments that differ between two calls, in words, without trying them."""
    now, then = with_defaults(target), with_defaults(reference)
    names = [name for name in dict.fromkeys([*now, *then]) if not holds_given(now.get(name))]
    changes = [
        (name, now.get(name, _ABSENT), then.get(name, _ABSENT))
        for name in names
        if not holds_given(then.get(name)) and not _same(now.get(name, _ABSENT), then.get(name, _ABSENT))
    ]
    return [_change(target, changes, name) for name, *_ in changes]


def with_defaults(made: Invocation) -> dict[str, Any]:
    """Return an invocation's arguments by name, with the defaults of those not given where they are known."""
    named = made.named()
    for name, default in made.parameters().items():
        if default is not NO_DEFAULT:
            named.setdefault(name, default)
    return named


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b))
    return a is b or (type(a) is type(b) and a == b) or (_number(a) and _number(b) and a == b)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def holds_given(value: Any) -> bool:
    """Tell whether an argument is, or holds, a recorded tensor."""
    if isinstance(value, (list, tuple)):
        return any(holds_given(item) for item in value)
    return isinstance(value, Given)


def _set(made: Invocation, name: str, value: Any) -> Invocation:
    return made.without(name) if value is _ABSENT else made.changed(name, value)


def _change(target: Invocation, changes: list[tuple[str, Any, Any]], name: str) -> str:
    """Return the change in words: `eps=1e-06 (now 1e-05) in Functional.layer_norm.3.forward`."""
    _, now, then = next(change for change in changes if change[0] == name)
    where = f"in {target.call.name}"
    if operator(target.call).rstrip("'") in _SCALES and _number(now) and _number(then):
        inverse = operator(target.call).rstrip("'") == "div"
        kind = "divisor, that is the scale factor," if inverse else "scale factor"
        return f"the {kind} {spoken(float(then))} (now {spoken(float(now))}) {where}"
    label = name if not name.isdigit() else f"argument {name}"
    if operator(target.call) == "getitem" and not holds_given(then):
        word = "index" if isinstance(then, int) and isinstance(now, int) else "slice"
        return f"the {word} {text(then)} (now {text(now)}) {where}"
    if then is _ABSENT:
        return f"no {label} (now {text(now)}) {where}"
    shown = "the tensor" if isinstance(then, (Given, torch.Tensor)) else text(then)
    tail = _hint(label, now, then)
    return f"{label}={shown} (now {'not given' if now is _ABSENT else text(now)}) {where}{tail}"


def _hint(label: str, now: Any, then: Any) -> str:
    if isinstance(then, torch.dtype) or isinstance(now, torch.dtype):
        return ", that is a cast to another dtype"
    if label in ("dims", "dim", "axis") or label.startswith("dim"):
        return ", that is another axis"
    if label == "approximate":
        return ", that is the erf form against the tanh form"
    return ""
