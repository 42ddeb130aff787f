"""A run's way to its loss, made again here: every forward call from what no call made, and the gradients by autograd.

A call that can't be made again (it draws random numbers, or its code is not in the run) is left out: what it made is
taken as it was recorded, and no gradient goes through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.step_graph import StepGraph
from numscope.diagnose.recorded.subgraph import Subgraph, is_replayable
from numscope.diagnose.replay.calls import cast_floating, operator_errors, replay

MOST_BYTES = 256 << 20  # of the tensors on the way, in float32: six passes in float64 take a minute on a CPU then


@dataclass(frozen=True)
class Graft:
    """Calls of another run in the place of those that made a tensor."""

    subgraph: Subgraph
    counterpart: Mapping[int, int]  # the subgraph's inputs → tensors of the pass


@dataclass
class WholePass:
    """The way to one tensor of a step; all values that were made stay here, by the numbers of their tensors."""

    graph: StepGraph
    dtype: torch.dtype | None  # None: as recorded
    leaf: Callable[[int], torch.Tensor]  # the value of a tensor that no call made
    grafts: Mapping[int, Graft] = field(default_factory=dict)  # by the tensor in whose place it is
    parameters: frozenset[int] = frozenset()
    values: dict[int, torch.Tensor] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)  # grafts that lie on the way

    def make(self, output: int) -> torch.Tensor:
        """Return a tensor, made again with all that leads to it, or raise CannotReplay."""
        waiting, opened = [output], set[int]()
        size = 0
        while waiting:
            number = waiting[-1]
            if number in self.values:
                waiting.pop()
                continue
            lacking = [given for given in self._needs(number) if given not in self.values]
            if number in opened and lacking:
                raise CannotReplay("what the reference's calls are given is made of what they make")
            opened.add(number)
            if lacking:
                waiting += lacking
                continue
            self._make(number)
            size += self.values[number].nbytes
            if size > 4 * MOST_BYTES:
                raise CannotReplay(f"the whole pass takes more than {4 * MOST_BYTES >> 20} MB")
            waiting.pop()
        return self.values[output]

    def gradients(self, loss: int) -> dict[int, torch.Tensor]:
        """Return the gradients of the parameters by a loss that was made."""
        wanted = [number for number in self.parameters if number in self.values and self.values[number].requires_grad]
        made = self.values[loss]
        if not wanted or not made.requires_grad:
            return {}
        with operator_errors():
            given = [self.values[number] for number in wanted]
            found: Sequence[torch.Tensor | None] = torch.autograd.grad(made, given, allow_unused=True)
        return {number: gradient for number, gradient in zip(wanted, found) if gradient is not None}

    def _maker(self, number: int) -> int | None:
        maker = self.graph.producer.get(number)
        if maker is None or self.graph.calls[maker].is_gradient or not is_replayable(self.graph, maker):
            return None
        return maker

    def _needs(self, number: int) -> list[int]:
        if number in self.grafts:
            graft = self.grafts[number]
            return [graft.counterpart[given] for given in graft.subgraph.inputs]
        maker = self._maker(number)
        return [] if maker is None else self.graph.inputs(maker)

    def _make(self, number: int) -> None:
        if number in self.grafts:
            graft = self.grafts[number]
            given = {inner: self.values[graft.counterpart[inner]] for inner in graft.subgraph.inputs}
            self.values[number] = graft.subgraph.run(given, self.dtype)
            self.used.add(number)
            return
        maker = self._maker(number)
        if maker is None:
            value = cast_floating(self.leaf(number), self.dtype)
            if number in self.parameters and value.is_floating_point():
                value = value.detach().clone().requires_grad_()
            self.values[number] = value
            return
        with torch.enable_grad():
            made = replay(self.graph, self.graph.calls[maker], self.values, self.dtype)
        if number not in made:
            raise CannotReplay(f"{self.graph.calls[maker].name} did not make it")
        for other, value in made.items():
            if other not in self.grafts:
                self.values.setdefault(other, value)
