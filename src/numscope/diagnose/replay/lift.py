"""The lift test: the two runs' subgraphs on the same inputs, in native precision, float32 and float64.

A difference that stays in float64 is one of meaning. A difference that shrinks with the precision comes from the order
of sums. A difference that vanishes as soon as both sides compute in the same precision comes from the place of casts.

    GELU tanh against erf     bf16 1.1e-03   fp32 2.0e-04   fp64 2.0e-04    semantic
    RMSNorm cast order        bf16 2.8e-03   fp32 0         fp64 0          precision
    split-K matmul            bf16 2.9e-03   fp32 2.3e-07   fp64 7.2e-16    order
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch

from numscope.core.dtypes import SINGLE
from numscope.core.words import Mechanism
from numscope.diagnose.recorded.step_graph import RecordedCall, StepGraph
from numscope.diagnose.replay.calls import Values
from numscope.diagnose.replay.measures import bias, relative_error, unit_roundoff
from numscope.diagnose.replay.noise_floor import noise_floor

_SEMANTIC = 1e-11  # a relative difference in float64 that no order of sums explains, unless the floor is higher
_FLOORS = 25.0  # … how many times the measured floor


class Replayable(Protocol):
    """A computation that can be replayed in another precision: a subgraph of calls, or a whole module."""

    @property
    def graph(self) -> StepGraph: ...
    @property
    def calls(self) -> tuple[RecordedCall, ...]: ...
    @property
    def inputs(self) -> tuple[int, ...]: ...
    @property
    def output(self) -> int: ...
    def run(self, values: Values | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Compute the output again."""
        ...


@dataclass(frozen=True)
class Lift:
    """The lift test's figures; None where something could not be replayed."""

    native: float | None  # target against reference, the same inputs, each as recorded
    float32: float | None
    float64: float | None
    floor: float  # the effect of an ulp in the inputs on the reference's output, natively
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
        """Return the kind of fault that the figures show."""
        if self.float64 is None:
            return "unknown"
        if self.float64 > max(_SEMANTIC, _FLOORS * self.floor64):
            return "semantic"
        if self.native:
            # Equal in float32: only the dtypes of the two sides differ.
            exact = self.float32 is not None and self.float32 <= SINGLE / 4
            return "precision" if exact or not self.same_dtypes else "order"
        return self._of_the_device()

    def _of_the_device(self) -> Mechanism:
        """Return the mechanism by the recorded outputs alone, where both sides compute the same on this machine."""
        if self.target_error is None:
            return "unknown"
        if self.target_error <= 4 * max(self.floor, unit_roundoff(torch.float64)):
            return "order" if self.same_dtypes else "precision"
        if math.isfinite(self.target_error) and self.target_error < 0.02 and abs(self.bias) < 0.1:
            return "precision"
        return "semantic"


def lift(target: Replayable, reference: Replayable, values: Values, reference_values: Values) -> Lift:
    """Run both sides on the same input values, given by each side's own tensor numbers."""
    native, float32, float64 = (
        relative_error(target.run(values, dtype), reference.run(reference_values, dtype))
        for dtype in (None, torch.float32, torch.float64)
    )
    floor, floor64 = (_floor(reference, reference_values, dtype) for dtype in (None, torch.float64))
    ours, theirs = own_error(target, floor), own_error(reference, floor)
    return Lift(
        native=native,
        float32=float32,
        float64=float64,
        floor=floor,
        floor64=floor64,
        target_error=ours.relative if ours else None,
        reference_error=theirs.relative if theirs else None,
        target_reproduced=ours.reproduced if ours else None,
        reference_reproduced=theirs.reproduced if theirs else None,
        same_dtypes=dtypes(target) == dtypes(reference),
        bias=ours.bias if ours else 0.0,
    )


def _floor(side: Replayable, values: Values, dtype: torch.dtype | None) -> float:
    inputs = {n: values[n] if n in values else side.graph.data(n) for n in side.inputs}
    if dtype is not None:
        inputs = {n: t.to(dtype) if t.is_floating_point() else t for n, t in inputs.items()}
    measured = noise_floor(lambda moved: side.run(moved, dtype), inputs)
    # The output is rounded too.
    made = getattr(torch, side.graph.tensors[side.output].dtype)
    return max(measured, unit_roundoff(dtype or made) / 2)


@dataclass(frozen=True)
class OwnError:
    """A side's recorded output against its own replay."""

    relative: float  # to the float64 replay
    reproduced: bool  # the native replay gives the recorded output, within the floor
    bias: float  # of the error to the float64 replay


def own_error(side: Replayable, floor: float) -> OwnError | None:
    """Return the error of a side's recorded output; None where its data was not kept."""
    if not side.graph.kept(side.output):
        return None
    recorded = side.graph.data(side.output)
    exact = side.run({}, torch.float64)
    reproduced = relative_error(side.run({}), recorded) <= 8 * floor
    shift = bias(recorded, exact) if recorded.shape == exact.shape else 0.0
    return OwnError(relative_error(recorded, exact), reproduced, shift)


def dtypes(side: Replayable) -> set[str]:
    """Return the dtypes that a side computes in."""
    return {side.graph.tensors[n].dtype for call in side.calls for n in side.graph.outputs(call.order).values()}
