"""The smallest inputs that still show a fault: axes are cut down as far as the two sides still differ.

A length that several inputs have is one thing (a batch, a width): it is cut everywhere at once, and in the arguments
that name it (a normalised shape, a view). A cut that the calls don't take, or that hides the difference, is undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from numscope.diagnose.recorded.group import Group
from numscope.diagnose.recorded.invocation import CannotReplay, Invocation
from numscope.diagnose.recorded.step_graph import NotKept
from numscope.diagnose.replay.measures import relative

Values = dict[int, torch.Tensor]
Edits = dict[int, Invocation | None]

_KEEP = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
_ROUNDS = 2


@dataclass(frozen=True)
class Inputs:
    """What both sides are given, and the calls whose arguments had to follow."""

    shared: Values
    values: Values
    target_edits: Edits = field(default_factory=dict)
    reference_edits: Edits = field(default_factory=dict)

    def error(self, target: Group, reference: Group) -> float:
        """Return how far apart the two sides are on these inputs."""
        return relative(
            target.run(self.shared, None, self.target_edits), reference.run(self.values, None, self.reference_edits)
        )

    @property
    def size(self) -> int:
        """Elements in all."""
        return sum(tensor.numel() for tensor in (*self.shared.values(), *self.values.values()))


def smallest(target: Group, reference: Group, start: Inputs, limit: float) -> Inputs:
    """Return the inputs cut down as far as the two sides still differ by more than twice the limit."""
    best = start
    for _ in range(_ROUNDS):
        before = best.size
        lengths = {n for t in (*best.shared.values(), *best.values.values()) for n in t.shape if n > 1}
        for length in sorted(lengths, reverse=True):
            best = _shortened(target, reference, best, length, limit)
        if best.size == before:
            break
    return best


def _shortened(target: Group, reference: Group, best: Inputs, length: int, limit: float) -> Inputs:
    for keep in _KEEP:
        if keep >= length:
            break
        for candidate in _candidates(target, reference, best, length, keep):
            try:
                if candidate.error(target, reference) > 2 * limit:
                    return candidate
            except (CannotReplay, NotKept, RuntimeError, IndexError, ValueError):
                continue  # a recorded size does not fit the smaller inputs
    return best


def _candidates(target: Group, reference: Group, now: Inputs, length: int, keep: int) -> list[Inputs]:
    """Return the inputs with a length cut: in every axis that has it, with arguments that follow; or the first axis."""
    everywhere = Inputs(
        {n: _cut(t, length, keep) for n, t in now.shared.items()},
        {n: _cut(t, length, keep) for n, t in now.values.items()},
        now.target_edits,
        now.reference_edits,
    )
    following = Inputs(
        everywhere.shared,
        everywhere.values,
        _edits(target, now.target_edits, length, keep),
        _edits(reference, now.reference_edits, length, keep),
    )
    leading = Inputs(
        {n: _cut(t, length, keep, first_only=True) for n, t in now.shared.items()},
        {n: _cut(t, length, keep, first_only=True) for n, t in now.values.items()},
        now.target_edits,
        now.reference_edits,
    )
    return [everywhere, following, leading]


def _cut(tensor: torch.Tensor, length: int, keep: int, first_only: bool = False) -> torch.Tensor:
    for axis in range(tensor.dim() if not first_only else min(tensor.dim() - 1, 1)):
        if tensor.shape[axis] == length:
            tensor = tensor.narrow(axis, 0, keep)
    return tensor.contiguous()


def _edits(group: Group, now: Mapping[int, Invocation | None], length: int, keep: int) -> Edits:
    """Return the calls of a group whose arguments name a length, with it cut in lists of sizes."""
    found = dict(now)
    for order, made in group.invocations().items():
        current = found.get(order) or made
        args = tuple(_renamed(value, length, keep) for value in current.args)
        kwargs = {name: _renamed(value, length, keep) for name, value in current.kwargs.items()}
        if args != current.args or kwargs != current.kwargs:
            found[order] = Invocation(current.call, current.function, args, kwargs)
    return found


def _renamed(value: Any, length: int, keep: int) -> Any:
    if isinstance(value, (list, tuple)) and value and all(type(item) is int for item in value):
        return type(value)(keep if item == length else item for item in value)
    return value
