"""What a hypothesis is asked, and what it answers."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from numscope.core.operators import canonical
from numscope.diagnose.recorded.group import Group
from numscope.diagnose.recorded.invocation import CannotReplay, Given, Invocation
from numscope.diagnose.recorded.step_graph import Call, NotKept
from numscope.diagnose.replay.measures import relative


@dataclass(frozen=True)
class Repair:
    """One change, and what the target then computes."""

    change: str  # completes "equal to the reference with …"
    output: Callable[[], torch.Tensor]
    lifted: bool = True  # computed in float64; else natively, to be held against the recorded output
    sentence: str = ""  # the whole sentence, where "with …" does not fit
    is_vague: bool = False  # says what is off, not what is done wrong: a better one goes before it

    def __str__(self) -> str:
        return self.sentence or f"equal to the reference with {self.change}"


@dataclass
class Case:
    """Two groups that should do the same, fed the same inputs."""

    target: Group
    reference: Group
    shared: Mapping[int, torch.Tensor]  # the target's inputs by number, with the reference's values
    reference_values: Mapping[int, torch.Tensor]
    floor: float  # relative error that rounding explains natively
    floor64: float
    reference_number: Mapping[int, int] = field(default_factory=dict)  # the target's tensors → the reference's

    expected_errors = (CannotReplay, NotKept, RuntimeError, ValueError, IndexError, TypeError, KeyError)

    @cached_property
    def given(self) -> torch.Tensor:
        """What the target computes, in float64."""
        return self.target.run(self.shared, torch.float64)

    @cached_property
    def wanted(self) -> torch.Tensor:
        """What the reference computes, in float64."""
        return self.reference.run(self.reference_values, torch.float64)

    @cached_property
    def native_given(self) -> torch.Tensor:
        """What the target computes natively."""
        return self.target.run(self.shared)

    @cached_property
    def native_wanted(self) -> torch.Tensor:
        """What the reference computes natively."""
        return self.reference.run(self.reference_values)

    @cached_property
    def before(self) -> float:
        """How far the target is from the reference, in float64."""
        return relative(self.given, self.wanted)

    @cached_property
    def native_before(self) -> float:
        """How far the target is from the reference natively."""
        return relative(self.native_given, self.native_wanted)

    def fits(self, repair: Repair) -> bool:
        """Tell whether a repair makes the target reproduce the reference."""
        try:
            made = repair.output()
        except self.expected_errors:
            return False
        if repair.lifted:
            after, limit, before = relative(made, self.wanted), max(1e-11, 25 * self.floor64), self.before
        else:
            after, limit, before = relative(made, self.native_wanted), 4 * self.floor, self.native_before
        return after <= limit and (after < before / 20 or (after == 0 and before > 0) or math.isinf(before))

    # What hypotheses are made of ------------------------------------------------------------------------------------

    @cached_property
    def target_calls(self) -> dict[int, Invocation]:
        """The target's calls as they can be made again."""
        return self.target.invocations()

    @cached_property
    def reference_calls(self) -> dict[int, Invocation]:
        """The reference's calls as they can be made again."""
        return self.reference.invocations()

    def edited(self, edits: Mapping[int, Invocation | None], lifted: bool = True) -> torch.Tensor:
        """Return what the target computes with some of its calls changed."""
        return self.target.run(self.shared, torch.float64 if lifted else None, edits)

    def paired(self) -> Iterator[tuple[Invocation, Invocation]]:
        """Yield the calls of both sides that do the same operator, in order."""
        target, reference = list(self.target_calls.values()), list(self.reference_calls.values())
        for tag, i1, i2, j1, _ in self._opcodes():
            if tag == "equal":
                for offset in range(i2 - i1):
                    yield target[i1 + offset], reference[j1 + offset]

    def unpaired(self) -> tuple[list[Call], list[Call]]:
        """Return the calls that only the target has, and those that only the reference has."""
        target, reference = list(self.target.calls), list(self.reference.calls)
        extra: list[Call] = []
        missing: list[Call] = []
        for tag, i1, i2, j1, j2 in self._opcodes():
            if tag != "equal":
                extra += target[i1:i2]
                missing += reference[j1:j2]
        return extra, missing

    def _opcodes(self) -> Sequence[tuple[str, int, int, int, int]]:
        target = [operator(call) for call in self.target.calls]
        reference = [operator(call) for call in self.reference.calls]
        return difflib.SequenceMatcher(None, target, reference, autojunk=False).get_opcodes()

    def input64(self, number: int) -> torch.Tensor:
        """Return one of the target's inputs in float64."""
        found = self.shared[number] if number in self.shared else self.target.record.data(number)
        return found.to(torch.float64) if found.is_floating_point() else found


def operator(call: Call) -> str:
    """Return a call's operator without dialect: `Tensor.__mul__` and `Torch.mul` are both `mul`."""
    return canonical(call.op) + ("'" if call.is_gradient else "")


Hypothesis = Callable[[Case], Iterator[Repair]]

_REGISTERED: list[tuple[str, Hypothesis]] = []


def hypothesis(name: str) -> Callable[[Hypothesis], Hypothesis]:
    """Register a hypothesis under a name."""

    def register(function: Hypothesis) -> Hypothesis:
        _REGISTERED.append((name, function))
        return function

    return register


def registered() -> list[tuple[str, Hypothesis]]:
    """Return the hypotheses that are loaded."""
    return list(_REGISTERED)


def text(value: Any) -> str:
    """Return an argument's value as the sentence shows it: `1e-06`, `'tanh'`, `float32`, `[:, 1:17]`, `a tensor`."""
    if isinstance(value, Given):
        return "a tensor"
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, float):
        return f"{value:g}" if value == float(f"{value:g}") else repr(round(value, 10) or value)
    if isinstance(value, slice):
        ends = ["" if part is None else text(part) for part in (value.start, value.stop)]
        return ":".join(ends) + (f":{text(value.step)}" if value.step is not None else "")
    if isinstance(value, (list, tuple)):
        inner = ", ".join(text(item) for item in value)
        is_index = any(isinstance(item, slice) or item is Ellipsis for item in value)
        return f"({inner})" if isinstance(value, tuple) and not is_index else f"[{inner}]"
    return "..." if value is Ellipsis else repr(value)
