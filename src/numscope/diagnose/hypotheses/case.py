"""A case: two subgraphs that should compute the same. A repair: one change that makes the target do so."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch

from numscope.core.errors import NotKeptError
from numscope.diagnose.recorded.invocation import CannotReplay, Invocation
from numscope.diagnose.recorded.subgraph import Subgraph, UnmatchedCalls, matched_calls, unmatched_calls
from numscope.diagnose.replay.measures import relative_error

# A hypothesis replays calls, and combines tensors whose shapes may not fit: torch raises RuntimeError for these.
NOT_APPLICABLE = (CannotReplay, NotKeptError, RuntimeError)


Fitted = Callable[["Case"], torch.Tensor]


@dataclass(frozen=True)
class Repair:
    """One change, and the output of the target with it."""

    change: str  # completes "equal to the reference with …"
    output: Callable[[], torch.Tensor]
    lifted: bool = True  # computed in float64; else in native precision
    sentence: str = ""  # the whole sentence, where "with …" does not fit
    is_vague: bool = False  # describes the error, not its cause: a more specific repair is preferred
    fitted: Fitted | None = None  # where a number was fitted: the output of another case's target with the same number

    @classmethod
    def giving(cls, change: str, output: torch.Tensor, is_vague: bool = False) -> Repair:
        """Return a repair with a known output."""
        return cls(change, lambda: output, is_vague=is_vague)

    def __str__(self) -> str:
        return self.sentence or f"equal to the reference with {self.change}"


class MatchedCall(NamedTuple):
    """A call of the target and its counterpart, ready to be replayed."""

    order: int  # of the target's call; for a backward call `target` is its forward call
    target: Invocation
    reference: Invocation


@dataclass
class Case:
    """Two subgraphs that should compute the same, with the same inputs."""

    target: Subgraph
    reference: Subgraph
    values: Mapping[int, torch.Tensor]  # the target's inputs by number, with the reference's values
    reference_values: Mapping[int, torch.Tensor]
    floor: float  # relative error that rounding explains natively
    floor64: float
    counterpart: Mapping[int, int] = field(default_factory=dict)  # the target's tensors → the reference's

    @property
    def is_bare(self) -> bool:
        """Whether no calls lead to the outputs: then the tensors themselves are compared."""
        return not self.target.calls and not self.reference.calls

    @property
    def output_words(self) -> str:
        """The words for the output in a repair: `it` where there is nothing but the tensor."""
        return "it" if self.is_bare else "the output"

    @cached_property
    def target_output(self) -> torch.Tensor:
        """The target's output in float64."""
        return self.target.run(self.values, torch.float64)

    @cached_property
    def reference_output(self) -> torch.Tensor:
        """The reference's output in float64."""
        return self.reference.run(self.reference_values, torch.float64)

    @cached_property
    def native_target_output(self) -> torch.Tensor:
        """The target's output in native precision."""
        return self.target.run(self.values)

    @cached_property
    def native_reference_output(self) -> torch.Tensor:
        """The reference's output in native precision."""
        return self.reference.run(self.reference_values)

    @cached_property
    def error(self) -> float:
        """The target's error in float64."""
        return relative_error(self.target_output, self.reference_output)

    @cached_property
    def native_error(self) -> float:
        """The target's error in native precision."""
        return relative_error(self.native_target_output, self.native_reference_output)

    @property
    def limit(self) -> float:
        """The largest error in float64 at which two outputs count as the same."""
        return max(1e-11, 25 * self.floor64)

    def fits(self, repair: Repair) -> bool:
        """Tell whether a repair makes the target reproduce the reference."""
        try:
            made = repair.output()
        except NOT_APPLICABLE:
            return False
        if repair.lifted:
            after, limit, before = relative_error(made, self.reference_output), self.limit, self.error
        else:
            after, limit = relative_error(made, self.native_reference_output), 4 * self.floor
            before = self.native_error
        return after <= limit and (after < before / 20 or (after == 0 and before > 0) or math.isinf(before))

    # For hypotheses ----------------------------------------------------------------------------------------------------

    @cached_property
    def target_calls(self) -> dict[int, Invocation]:
        """The target's calls, by order, ready to be replayed."""
        return self.target.invocations()

    @cached_property
    def reference_calls(self) -> dict[int, Invocation]:
        """The reference's calls, by order, ready to be replayed."""
        return self.reference.invocations()

    def edited(self, edits: Mapping[int, Invocation | None], lifted: bool = True) -> torch.Tensor:
        """Return the target's output with some of its calls changed."""
        return self.target.run(self.values, torch.float64 if lifted else None, edits)

    def error_of_reference(self, edits: Mapping[int, Invocation | None]) -> float | None:
        """Return the error of the reference, with some of its calls changed, against the target's output.

        None where the changed calls can't be replayed.
        """
        try:
            made = self.reference.run(self.reference_values, torch.float64, edits)
        except NOT_APPLICABLE:
            return None
        return relative_error(made, self.target_output)

    def matched(self) -> Iterator[MatchedCall]:
        """Yield the calls of both sides that run the same operator, in order."""
        for ours, theirs in matched_calls(self.target, self.reference):
            yield MatchedCall(ours.order, self.target_calls[ours.order], self.reference_calls[theirs.order])

    def unmatched(self) -> UnmatchedCalls:
        """Return the calls that have no counterpart on the other side."""
        return unmatched_calls(self.target, self.reference)

    def involves(self, *operators: str) -> bool:
        """Tell whether one of the subgraphs has a call of these operators."""
        return any(call.operator in operators for call in (*self.target.calls, *self.reference.calls))

    def input64(self, number: int) -> torch.Tensor:
        """Return one of the target's inputs in float64."""
        found = self.values[number] if number in self.values else self.target.graph.data(number)
        return found.to(torch.float64) if found.is_floating_point() else found


Hypothesis = Callable[[Case], Iterator[Repair]]


@dataclass(frozen=True)
class Registered:
    """A registered hypothesis."""

    name: str
    family: str  # the module that it is defined in
    test: Hypothesis


_REGISTERED: list[Registered] = []


def hypothesis(name: str) -> Callable[[Hypothesis], Hypothesis]:
    """Register a hypothesis under a name."""

    def register(function: Hypothesis) -> Hypothesis:
        *_, family = function.__module__.split(".")
        _REGISTERED.append(Registered(name, family, function))
        return function

    return register


def registered() -> list[Registered]:
    """Return the hypotheses that are loaded."""
    return list(_REGISTERED)
