"""The lift test: the two runs' subgraphs on the same inputs, in native precision, float32 and float64.

A difference that stays in float64 is one of meaning. A difference that shrinks with the precision comes from the order
of sums. A difference that vanishes as soon as both sides compute in the same precision comes from the place of casts.

    GELU tanh against erf     bf16 1.1e-03   fp32 2.0e-04   fp64 2.0e-04    semantic
    RMSNorm cast order        bf16 2.8e-03   fp32 0         fp64 0          precision
    split-K matmul            bf16 2.9e-03   fp32 2.3e-07   fp64 7.2e-16    order
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from numscope.core.dtypes import SINGLE
from numscope.core.words import Mechanism
from numscope.diagnose.replay.calls import Values
from numscope.diagnose.replay.measures import relative_error, unit_roundoff
from numscope.diagnose.replay.noise_floor import noise_floor
from numscope.diagnose.replay.outcome import Outcome, Programs, Recorded
from numscope.diagnose.replay.own_error import OwnError, own_error
from numscope.diagnose.replay.replayable import Replayable

_SEMANTIC = 1e-11  # a relative difference in float64 that no order of sums explains, unless the floor is higher
_FLOORS = 25.0  # … how many times the measured floor


@dataclass(frozen=True)
class Lift:
    """The lift test's figures; None where something could not be replayed."""

    native: float | None  # target against reference, the same inputs, each as recorded
    float32: float | None
    float64: float | None
    floor: float  # the effect of an ulp in the inputs on the reference's output, natively
    floor64: float  # … in float64
    target: OwnError | None  # of the recorded output, from this side's own recorded inputs
    reference: OwnError | None
    same_dtypes: bool

    def to_dict(self) -> dict[str, object]:
        """Return the figures for the report."""
        figures: dict[str, object] = {
            "native": self.native,
            "float32": self.float32,
            "float64": self.float64,
            "floor": self.floor,
            "mechanism": self.mechanism(),
        }
        states = (self.outcome.target, self.outcome.reference)
        for name, own, state in zip(("target", "reference"), (self.target, self.reference), states):
            figures[f"{name}_recorded"] = state.value
            told = own.to_dict() if own is not None else {}
            figures[f"{name}_error"] = told.get("relative")
            figures[f"{name}_operator_error"] = told.get("operator")
            figures[f"{name}_reproduced"] = told.get("reproduced")
            figures[f"{name}_device"] = told.get("device")
        return figures

    @property
    def outcome(self) -> Outcome:
        """The outcome that the figures show, of the two programs and of each recorded output."""
        return Outcome(self._programs(), _recorded(self.target, self.reference), _recorded(self.reference, self.target))

    def mechanism(self) -> Mechanism:
        """Return the kind of fault that the figures show."""
        return self.outcome.mechanism

    def _programs(self) -> Programs:
        if self.float64 is None:
            return Programs.UNKNOWN
        if self.float64 > max(_SEMANTIC, _FLOORS * self.floor64):
            return Programs.OTHER_MEANING
        if not self.native:
            return Programs.SAME if self.same_dtypes else Programs.OTHER_DTYPES
        # Equal in float32: only the dtypes of the two sides differ.
        is_exact = self.float32 is not None and self.float32 <= SINGLE / 4
        return Programs.OTHER_DTYPES if is_exact or not self.same_dtypes else Programs.OTHER_ORDER


def _recorded(own: OwnError | None, other: OwnError | None) -> Recorded:
    if own is None:
        return Recorded.NOT_KEPT
    return Recorded.OFF if own.is_off(other) else Recorded.RIGHT


def lift(target: Replayable, reference: Replayable, values: Values, reference_values: Values) -> Lift:
    """Run both sides on the same input values, given by each side's own tensor numbers."""
    native, float32, float64 = (
        relative_error(target.run(values, dtype), reference.run(reference_values, dtype))
        for dtype in (None, torch.float32, torch.float64)
    )
    floor, floor64 = (_floor(reference, reference_values, dtype) for dtype in (None, torch.float64))
    return Lift(
        native=native,
        float32=float32,
        float64=float64,
        floor=floor,
        floor64=floor64,
        target=own_error(target, floor),
        reference=own_error(reference, floor),
        same_dtypes=dtypes(target) == dtypes(reference),
    )


def _floor(side: Replayable, values: Values, dtype: torch.dtype | None) -> float:
    inputs = {n: values[n] if n in values else side.graph.data(n) for n in side.inputs}
    if dtype is not None:
        inputs = {n: t.to(dtype) if t.is_floating_point() else t for n, t in inputs.items()}
    measured = noise_floor(lambda moved: side.run(moved, dtype), inputs)
    # The output is rounded too.
    made = getattr(torch, side.graph.tensors[side.output].dtype)
    return max(measured, unit_roundoff(dtype or made) / 2)


def dtypes(side: Replayable) -> set[str]:
    """Return the dtypes that a side computes in."""
    return {side.graph.tensors[n].dtype for call in side.calls for n in side.graph.outputs(call.order).values()}
