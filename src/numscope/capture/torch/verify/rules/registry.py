"""The registry of rules: for each operator, how a sample of its output is computed again.

A rule is a generator. It asks for elements (`yield [Read, …]`), first of what the call is given and then of what it made,
is sent them as arrays of float64, and returns the parts of the output beside what exact arithmetic gives. So one rule
serves calls whose inputs are still there afterwards, calls that write over them, and devices whose elements arrive late.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch

from numscope.capture.torch.verify.lens import Array, Read
from numscope.capture.torch.verify.measure import Compared
from numscope.capture.torch.verify.sampling import Sampling


@dataclass(frozen=True)
class OperatorCall:
    """One call of an operator: its arguments by the names of its schema, and what it made."""

    name: str  # without namespace, overload and the underscore of in-place forms
    overload: str
    given: Mapping[str, Any]
    made: Sequence[Any]  # for a call that writes over an argument, that argument
    in_place: bool = False

    def __getitem__(self, name: str) -> Any:
        return self.given[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument, or the default where the operator has none of that name."""
        return self.given.get(name, default)

    @property
    def out(self) -> torch.Tensor:
        """The first output."""
        out: torch.Tensor = self.made[0]
        return out


class NotVerifiedError(Exception):
    """This call cannot be computed again; the text says why."""


Steps: TypeAlias = Generator[Sequence[Read], list[Array], list[Compared]]
Rule: TypeAlias = Callable[[OperatorCall, Sampling], Steps]


class Registered(NamedTuple):
    """A rule, and how often it asks for elements of what the call is given; all else is of what it made."""

    rule: Rule
    inputs: int
    host_only: bool  # it reads memory of the CPU itself


_RULES: dict[str, Registered] = {}


def rule(*names: str, inputs: int = 1, host_only: bool = False) -> Callable[[Rule], Rule]:
    """Register a rule for operators of these names."""

    def add(function: Rule) -> Rule:
        for name in names:
            add_rule(name, function, inputs, host_only)
        return function

    return add


def add_rule(name: str, function: Rule, inputs: int = 1, host_only: bool = False) -> None:
    """Register a rule."""
    _RULES[name] = Registered(function, inputs, host_only)


def rule_of(name: str) -> Registered | None:
    """Return the rule of an operator, or None where there is none."""
    return _RULES.get(name)


def known() -> list[str]:
    """Return the operators that have a rule."""
    return sorted(_RULES)


def dtype_of(tensor: torch.Tensor) -> str:
    """Return torch's short name of a tensor's dtype."""
    return str(tensor.dtype).removeprefix("torch.")


def together(calls: Sequence[Steps]) -> Steps:
    """Follow several rules of one input step each as one: of a call that does the same with a list of tensors."""
    asked = [next(one) for one in calls]
    for last in (False, True):
        values = iter((yield [read for reads in asked for read in reads]))
        given = [[next(values) for _ in reads] for reads in asked]
        if last:
            break
        asked = [one.send(mine) for one, mine in zip(calls, given)]
    parts: list[Compared] = []
    for slot, (one, mine) in enumerate(zip(calls, given)):
        try:
            one.send(mine)
        except StopIteration as end:
            parts += [part._replace(slot=slot) for part in end.value]
    return parts
