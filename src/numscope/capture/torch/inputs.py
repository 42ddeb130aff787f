"""A call's inputs: their rows, its other arguments, and where the gradients of its inputs will go."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from numscope.capture.torch.slots import Argument, Arguments, Keywords, Slot
from numscope.capture.torch.watch import Watch

_grad_is_on = torch.is_grad_enabled


# Where the gradients of a call's inputs will go. The slot of a gradient is found by the node of its edge, with the output
# number if it is not 0, or by the address of a leaf; it is a list of slots where a tensor is there twice, and later what
# `lead` makes of it.
Targets = dict[Hashable, object]
LEAVES = "leaves"  # is among the keys if the address of a leaf is


class Inputs:
    """A call's inputs as they are before the call."""

    __slots__ = ("named", "positional", "rows", "slots", "targets")

    def __init__(self, watch: Watch) -> None:
        self.positional: list[Argument] = []  # arguments that are no tensors
        self.named: list[Argument] = []
        self.slots: list[Slot] = []  # the tensors
        self.rows: list[int] = []  # of their slots
        self.targets: Targets | None = {} if watch.record_backward and _grad_is_on() else None  # None: no gradients

    def take(self, watch: Watch, order: int, args: Arguments, kwargs: Keywords) -> None:
        """Find and measure the inputs of a call that does not write to them.

        The compiled form leaves `slots` empty where nothing but the rows is asked for, see `Watch.calm`.
        """
        self.find(watch, args, kwargs)
        self.measure(watch, order)

    def find(self, watch: Watch, args: Arguments, kwargs: Keywords) -> None:
        """Find the tensors and the other arguments."""
        self.slots = watch.flatten("input", args, self.positional)
        if kwargs:
            self.slots += watch.flatten_named("kwargs", kwargs, self.named)

    def measure(self, watch: Watch, order: int, overwritten: bool = False) -> None:
        """Measure the tensors, and note where their gradients will go; the call itself may change that."""
        if watch.record_forward:
            self.rows = watch.rows(order, self.slots, overwritten)
        if self.targets is not None:
            aim(watch, self.targets, self.slots)


def aim(watch: Watch, targets: Targets, slots: list[Slot]) -> None:
    """Add where the gradients of a call's inputs will go."""
    for slot, tensor in slots:
        key: Hashable = tensor.grad_fn
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


def aim_again(targets: Targets, key: Hashable, out: int) -> None:
    """Add a slot for the gradient of a tensor that is there twice."""
    known = targets[key]
    targets[key] = [*known, out] if isinstance(known, list) else [known, out]
