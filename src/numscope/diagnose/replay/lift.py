"""The lift test: the two runs' groups on the same inputs, in native precision, float32 and float64.

A difference that stays in float64 is a difference in meaning. One that shrinks with the precision is the order of sums.
One that is gone as soon as both sides compute in the same precision comes from where the casts stand.

    GELU tanh against erf     bf16 1.1e-03   fp32 2.0e-04   fp64 2.0e-04    semantic
    RMSNorm cast order        bf16 2.8e-03   fp32 0         fp64 0          precision
    split-K matmul            bf16 2.9e-03   fp32 2.3e-07   fp64 7.2e-16    order
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from numscope.core.dtypes import SINGLE
from numscope.core.words import Mechanism
from numscope.diagnose.recorded.step_graph import Call, Record
from numscope.diagnose.replay import noise_floor
from numscope.diagnose.replay.measures import bias, relative, unit_roundoff

Values = Mapping[int, torch.Tensor]

_SEMANTIC = 1e-11  # a relative difference in float64 that no order of sums explains, unless the floor is higher
_FLOORS = 25.0  # … how many times the measured floor


class Replayable(Protocol):
    """What can be lifted: a group of calls, or a module as a unit."""

    @property
    def record(self) -> Record: ...
    @property
    def calls(self) -> tuple[Call, ...]: ...
    @property
    def inputs(self) -> tuple[int, ...]: ...
    @property
    def output(self) -> int: ...
    def run(self, values: Values | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Make it again and return the output."""
        ...


@dataclass(frozen=True)
class Lift:
    """The lift test's figures; None where something could not be replayed."""

    native: float | None  # target against reference, the same inputs, each as recorded
    float32: float | None
    float64: float | None
    floor: float  # what an ulp in the inputs does to the reference's output, natively
    floor64: float  # … in float64
    target_error: float | None  # the recorded output against this side's own float64 replay
    reference_error: float | None
    target_reproduced: bool | None  # the native replay gives the recorded output, within the floor
    reference_reproduced: bool | None
    same_dtypes: bool
    bias: float = 0.0  # of the target's recorded output against its float64 replay

    def to_dict(self) -> dict[str, object]:
        """Return the figures for the report."""
        return {
            "native": self.native,
            "float32": self.float32,
            "float64": self.float64,
            "floor": self.floor,
            "target_error": self.target_error,
            "reference_error": self.reference_error,
            "target_reproduced": self.target_reproduced,
            "reference_reproduced": self.reference_reproduced,
        }

    def mechanism(self) -> Mechanism:
        """Return what kind of fault the figures show."""
        if self.float64 is None:
            return "unknown"
        if self.float64 > max(_SEMANTIC, _FLOORS * self.floor64):
            return "semantic"
        if self.native:
            # Both sides lifted to float32 do the very same: only their dtypes were different.
            exact = self.float32 is not None and self.float32 <= SINGLE / 4
            return "precision" if exact or not self.same_dtypes else "order"
        return self._of_the_device()

    def _of_the_device(self) -> Mechanism:
        """Judge from the recorded outputs alone: on this machine both sides compute the same."""
        if self.target_error is None:
            return "unknown"
        if self.target_error <= 4 * max(self.floor, unit_roundoff(torch.float64)):
            return "order" if self.same_dtypes else "precision"
        if math.isfinite(self.target_error) and self.target_error < 0.02 and abs(self.bias) < 0.1:
            return "precision"
        return "semantic"


def lift(target: Replayable, reference: Replayable, shared: Values, reference_values: Values) -> Lift:
    """Run both groups on the reference's inputs: `shared` are they in the target's numbers."""
    native = relative(target.run(shared), reference.run(reference_values))
    single = relative(target.run(shared, torch.float32), reference.run(reference_values, torch.float32))
    double = relative(target.run(shared, torch.float64), reference.run(reference_values, torch.float64))
    lowest = _floor(reference, reference_values, None)
    lowest64 = _floor(reference, reference_values, torch.float64)
    target_error, target_same, shift = own_error(target, lowest)
    reference_error, reference_same, _ = own_error(reference, lowest)
    return Lift(
        native,
        single,
        double,
        lowest,
        lowest64,
        target_error,
        reference_error,
        target_same,
        reference_same,
        dtypes(target) == dtypes(reference),
        shift,
    )


def _floor(group: Replayable, values: Values, dtype: torch.dtype | None) -> float:
    inputs = {n: values[n] if n in values else group.record.data(n) for n in group.inputs}
    if dtype is not None:
        inputs = {n: t.to(dtype) if t.is_floating_point() else t for n, t in inputs.items()}
    measured = noise_floor.floor(lambda moved: group.run(moved, dtype), inputs)
    # The output itself is rounded too.
    made = getattr(torch, group.record.tensors[group.output].dtype)
    return max(measured, unit_roundoff(dtype or made) / 2)


def own_error(group: Replayable, lowest: float) -> tuple[float | None, bool | None, float]:
    """Return the recorded output's error against this side's float64 replay, whether a native one gives it, its bias."""
    if not group.record.kept(group.output):
        return None, None, 0.0
    recorded = group.record.data(group.output)
    exact = group.run({}, torch.float64)
    error = relative(recorded, exact)
    same = relative(group.run({}), recorded) <= 8 * lowest
    return error, same, bias(recorded, exact) if recorded.shape == exact.shape else 0.0


def dtypes(group: Replayable) -> list[str]:
    """Return the dtypes that a group computes in, by call."""
    found = []
    for call in group.calls:
        found += [group.record.tensors[n].dtype for n in group.record.outputs(call.order).values()]
    return sorted(set(found))
