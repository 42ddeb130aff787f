"""An argument or a tensor that differs between two calls: the first thing to try."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import torch

from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis
from numscope.diagnose.hypotheses.wording import spoken, value_words
from numscope.diagnose.pytree import leaves, tree_map
from numscope.diagnose.recorded.invocation import Invocation, TensorRef, holds_tensor

ABSENT = object()
_SCALES = {"mul", "div", "rdiv"}


@dataclass(frozen=True)
class ArgumentChange:
    """An argument that differs: its value in the target's call, and in the reference's; ABSENT where it has none."""

    name: str
    now: object
    then: object

    def made(self, invocation: Invocation) -> Invocation:
        """Return the target's call with the reference's argument."""
        return invocation.without(self.name) if self.then is ABSENT else invocation.changed(self.name, self.then)


@hypothesis("argument")
def argument(case: Case) -> Iterator[Repair]:
    """Give the target's call the reference's argument: eps, approximate, dim, scale, is_causal, training …"""
    for order, target, reference in case.matched():
        changes = _changes(case, target, reference)
        whole = target
        for change in changes:
            whole = change.made(whole)
            yield _repair(case, change_words(target, change), order, change.made(target))
        if len(changes) > 1:
            yield _repair(case, ", ".join(change_words(target, change) for change in changes), order, whole)


@hypothesis("every argument")
def every_argument(case: Case) -> Iterator[Repair]:
    """Give all of the target's calls the reference's arguments at once."""
    edits: dict[int, Invocation] = {}
    said: list[str] = []
    for order, target, reference in case.matched():
        for change in _changes(case, target, reference):
            edits[order] = change.made(edits.get(order, target))
            said.append(change_words(target, change))
    if len(edits) > 1:
        yield Repair(", ".join(dict.fromkeys(said)), lambda: case.edited(edits))


@hypothesis("operand")
def operand(case: Case) -> Iterator[Repair]:
    """Give the target's call the tensors of the reference's call: swapped, or another tensor that both runs have."""
    in_target = {there: here for here, there in case.counterpart.items()}
    graph = case.target.graph
    for order, target, reference in case.matched():
        now, then = _operands(target), [in_target.get(number) for number in _operands(reference)]
        wanted = [number for number in then if number is not None]
        if len(now) != len(then) or len(wanted) != len(then) or now == wanted:
            continue
        changed = [(a, b) for a, b in zip(now, wanted) if a != b]
        makers = {graph.producer.get(number) for number in changed[0]}
        maker = makers.pop() if len(makers) == 1 else None
        if sorted(now) == sorted(wanted):
            change = f"the operands of {target.call.name} swapped (in the reference's order)"
        elif maker is not None:
            pairs = ", ".join(f"{_output(graph.name_of(b))} (now {_output(graph.name_of(a))})" for a, b in changed)
            made_by = graph.calls[maker].name
            change = f"the outputs of {made_by} taken in the reference's order in {target.call.name}: {pairs}"
        else:
            pairs = ", ".join(f"operand {graph.name_of(b)} (now {graph.name_of(a)})" for a, b in changed)
            change = f"{pairs} in {target.call.name}"
        yield _repair(case, change, order, _with_operands(target, wanted))


def _repair(case: Case, change: str, order: int, edited: Invocation) -> Repair:
    return Repair(change, lambda: case.edited({order: edited}))


def _output(name: str) -> str:
    _call, _, tail = name.rpartition(".output")
    return f"output{tail}"


def _operands(made: Invocation) -> list[int]:
    return [leaf.number for leaf in leaves((made.args, made.kwargs)) if isinstance(leaf, TensorRef)]


def _with_operands(made: Invocation, numbers: Sequence[int]) -> Invocation:
    following = iter(numbers)

    def fill(leaf: object) -> object:
        return TensorRef(next(following)) if isinstance(leaf, TensorRef) else leaf

    args, kwargs = tree_map((made.args, made.kwargs), fill)
    return replace(made, args=args, kwargs=kwargs)


def _changes(case: Case, target: Invocation, reference: Invocation) -> list[ArgumentChange]:
    def value_there(number: int) -> torch.Tensor:
        return case.reference_values[number] if number in case.reference_values else case.reference.graph.data(number)

    return differing_arguments(target, reference, case.counterpart, value_there)


def differing_arguments(
    target: Invocation,
    reference: Invocation,
    counterpart: Mapping[int, int],
    value_there: Callable[[int], torch.Tensor],
) -> list[ArgumentChange]:
    """Return the arguments that differ, defaults filled in.

    A tensor of the reference is given by the target's number where both runs have it, else by its value.
    """
    in_target = {there: here for here, there in counterpart.items()}
    now, then = target.with_defaults(), reference.with_defaults()
    found = []
    for name in dict.fromkeys([*now, *then]):
        a, b = now.get(name, ABSENT), then.get(name, ABSENT)
        if holds_tensor(a) and holds_tensor(b):
            continue  # tensors: the hypothesis "operand" compares them
        if isinstance(b, TensorRef) and b.number in in_target:
            b = TensorRef(in_target[b.number])
        elif isinstance(b, TensorRef):
            value = value_there(b.number)
            b = value.item() if value.dim() == 0 else value
        if holds_tensor(a) and b is ABSENT:
            continue
        if not _same(a, b):
            found.append(ArgumentChange(name, a, b))
    return found


def argument_words(target: Invocation, reference: Invocation) -> list[str]:
    """Return the arguments that differ between two calls, in words, without trying them."""
    now, then = target.with_defaults(), reference.with_defaults()
    changes = (ArgumentChange(name, now.get(name, ABSENT), then.get(name, ABSENT)) for name in {**now, **then})
    return [
        change_words(target, change)
        for change in changes
        if not holds_tensor(change.now) and not holds_tensor(change.then) and not _same(change.now, change.then)
    ]


def _same(a: object, b: object) -> bool:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b))
    return a is b or (type(a) is type(b) and bool(a == b)) or (_is_number(a) and _is_number(b) and a == b)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def change_words(target: Invocation, change: ArgumentChange) -> str:
    """Return a change in words: `eps=1e-06 (now 1e-05) in Functional.layer_norm.3.forward`."""
    now, then = change.now, change.then
    where = f"in {target.call.name}"
    operator = target.call.operator.rstrip("'")
    if operator in _SCALES and _is_number(now) and _is_number(then):
        kind = "divisor, that is the scale factor," if operator == "div" else "scale factor"
        return f"the {kind} {spoken(float(then))} (now {spoken(float(now))}) {where}"
    label = change.name if not change.name.isdecimal() else f"argument {change.name}"
    if target.call.operator == "getitem" and not holds_tensor(then):
        word = "index" if isinstance(then, int) and isinstance(now, int) else "slice"
        return f"the {word} {value_words(then)} (now {value_words(now)}) {where}"
    if then is ABSENT:
        return f"no {label} (now {value_words(now)}) {where}"
    shown = "the tensor" if isinstance(then, (TensorRef, torch.Tensor)) else value_words(then)
    tail = _meaning(label, now, then)
    return f"{label}={shown} (now {'not given' if now is ABSENT else value_words(now)}) {where}{tail}"


def _meaning(label: str, now: object, then: object) -> str:
    """Return in words the meaning of an argument, where its name does not tell."""
    if isinstance(then, torch.dtype) or isinstance(now, torch.dtype):
        return ", that is a cast to another dtype"
    if label.startswith("dim") or label == "axis":
        return ", that is another axis"
    if label == "approximate":
        return ", that is the erf form against the tanh form"
    return ""
