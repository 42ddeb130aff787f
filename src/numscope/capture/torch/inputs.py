"""A call's inputs in one loop: their rows, its other arguments, and where the gradients of its inputs will go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from numscope.capture.torch.slots import SIMPLE, Place, Slot
from numscope.capture.torch.watch import LIST, Watch
from numscope.fingerprint.columns import Unmeasured

# Where the gradients of a call's inputs will go. The slot of a gradient is found by the node of its edge, with the output
# number if it is not 0, or by the address of a leaf; it is a list of slots where a tensor is there twice, and later what
# `lead` makes of it.
Targets = dict[Any, Any]
LEAVES = "leaves"  # is among the keys if the address of a leaf is

_Tensor = torch.Tensor
_Parameter = torch.nn.Parameter


def take(
    watch: Watch, order: int, group: str, values: Iterable[Any], places: Iterable[Place], others: list[tuple[str, Any]],
    rows: list[int], targets: Targets | None,
) -> None:  # fmt: skip
    """Add the rows of the tensors among a call's values, its other values, and where the gradients of the tensors will go.

    To be asked only where `Watch.calm` says so, of a call that does not write to its inputs, and before it: it may change
    where gradients go. No targets: gradients are not recorded.
    """
    tensors = watch.tensors
    value: Any
    for value, (slot, out, name) in zip(values, places):
        kind = type(value)
        if kind is _Tensor or kind is _Parameter:
            note = -1
            try:
                number = tensors.number(value)
            except Unmeasured as why:
                number, note = -1, watch.unmeasured(why)
            rows += (order, slot, number, note)
            if targets is None:
                continue
            key = value.grad_fn  # from here on as in `aim`, without a call of it for each
            if key is None:
                if not value.requires_grad:
                    continue
                targets[LEAVES] = True
                key = id(value)
            elif place := value.output_nr:
                key = key, place
            if key in targets:
                aim_again(targets, key, out)
            else:
                targets[key] = out
        elif kind in SIMPLE:
            others.append((name, value))
        else:
            found = watch.flatten_one(group, name, value, others)
            if found:
                rows += watch.rows(order, found)
                if targets is not None:
                    aim(watch, targets, found)


def aim(watch: Watch, targets: Targets, slots: list[Slot]) -> None:
    """Add where the gradients of a call's inputs will go."""
    for slot, tensor in slots:
        key: Any = tensor.grad_fn
        if key is None:
            if not tensor.requires_grad:
                continue
            targets[LEAVES] = True
            key = id(tensor)
        elif number := tensor.output_nr:
            key = key, number
        out = watch.gradient_slot(slot)
        if key in targets:
            aim_again(targets, key, out)
        else:
            targets[key] = out


def aim_again(targets: Targets, key: Any, out: int) -> None:
    known = targets[key]
    targets[key] = [*known, out] if type(known) is list else [known, out]


def take_state(
    watch: Watch, order: int, tensors: Mapping[str, torch.Tensor | None], slots: dict[str, int], rows: list[int]
) -> None:
    """Add the rows of a module's own tensors to those of its inputs; to be asked only where `Watch.calm` says so."""
    if len(tensors) > LIST:
        held = [
            (slots.get(name) or watch.state_slot(slots, name), one) for name, one in tensors.items() if one is not None
        ]
        rows += watch.rows(order, held)
        return
    for name, tensor in tensors.items():
        if tensor is not None:
            slot = slots.get(name) or watch.state_slot(slots, name)
            try:
                rows += (order, slot, watch.tensors.number(tensor), -1)
            except Unmeasured as why:
                rows += (order, slot, -1, watch.unmeasured(why))
