"""Minifies the inputs of a repro: axes are shortened as long as the two sides still differ.

A length that several inputs share is one dimension (a batch, a width). It is shortened in all of them at once, and in the
arguments that name it (a normalised shape, a view). A cut that the calls refuse, or that hides the difference, is undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from numscope.core.errors import NotKeptError
from numscope.diagnose.recorded.invocation import CannotReplay, Invocation
from numscope.diagnose.recorded.subgraph import Subgraph
from numscope.diagnose.replay.measures import relative_error

Values = dict[int, torch.Tensor]
Edits = dict[int, Invocation | None]

_KEEP = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
_ROUNDS = 2


@dataclass(frozen=True)
class Inputs:
    """Common values for the inputs of both sides, by each side's own numbers, and calls with adapted arguments."""

    target: Values
    reference: Values
    target_edits: Edits = field(default_factory=dict)
    reference_edits: Edits = field(default_factory=dict)

    def error(self, target: Subgraph, reference: Subgraph) -> float:
        """Return how far apart the two sides are on these inputs."""
        made = target.run(self.target, None, self.target_edits)
        return relative_error(made, reference.run(self.reference, None, self.reference_edits))

    @property
    def size(self) -> int:
        """The number of elements of all inputs."""
        return sum(tensor.numel() for tensor in (*self.target.values(), *self.reference.values()))


def minify(target: Subgraph, reference: Subgraph, start: Inputs, limit: float) -> Inputs:
    """Return the smallest inputs found for which the two sides differ by more than twice the limit."""
    best = start
    for _ in range(_ROUNDS):
        before = best.size
        lengths = {n for t in (*best.target.values(), *best.reference.values()) for n in t.shape if n > 1}
        for length in sorted(lengths, reverse=True):
            best = _shortened(target, reference, best, length, limit)
        if best.size == before:
            break
    return best


def _shortened(target: Subgraph, reference: Subgraph, best: Inputs, length: int, limit: float) -> Inputs:
    for keep in _KEEP:
        if keep >= length:
            break
        for candidate in _candidates(target, reference, best, length, keep):
            try:
                if candidate.error(target, reference) > 2 * limit:
                    return candidate
            except (CannotReplay, NotKeptError):
                continue  # a recorded size does not fit the smaller inputs
    return best


def _candidates(target: Subgraph, reference: Subgraph, now: Inputs, length: int, keep: int) -> list[Inputs]:
    """Return the inputs with a length cut in every axis, the same with adapted arguments, and cut in the first axis."""
    everywhere = replace(
        now,
        target={number: _cut(tensor, length, keep) for number, tensor in now.target.items()},
        reference={number: _cut(tensor, length, keep) for number, tensor in now.reference.items()},
    )
    following = replace(
        everywhere,
        target_edits=_edits(target, now.target_edits, length, keep),
        reference_edits=_edits(reference, now.reference_edits, length, keep),
    )
    leading = replace(
        now,
        target={number: _cut(tensor, length, keep, first_only=True) for number, tensor in now.target.items()},
        reference={number: _cut(tensor, length, keep, first_only=True) for number, tensor in now.reference.items()},
    )
    return [everywhere, following, leading]


def _cut(tensor: torch.Tensor, length: int, keep: int, first_only: bool = False) -> torch.Tensor:
    for axis in range(tensor.dim() if not first_only else min(tensor.dim() - 1, 1)):
        if tensor.shape[axis] == length:
            tensor = tensor.narrow(axis, 0, keep)
    return tensor.contiguous()


def _edits(subgraph: Subgraph, now: Mapping[int, Invocation | None], length: int, keep: int) -> Edits:
    """Return the calls of a subgraph with a length cut in their lists of sizes, those alone that have it."""
    found = dict(now)
    for order, made in subgraph.invocations().items():
        current = found.get(order) or made
        args = tuple(_resized(value, length, keep) for value in current.args)
        kwargs = {name: _resized(value, length, keep) for name, value in current.kwargs.items()}
        if args != current.args or kwargs != current.kwargs:
            found[order] = replace(current, args=args, kwargs=kwargs)
    return found


def _resized(value: object, length: int, keep: int) -> object:
    if isinstance(value, (list, tuple)) and value and all(type(item) is int for item in value):
        return type(value)(keep if item == length else item for item in value)
    return value
