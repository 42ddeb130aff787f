"""A side's own error: its recorded output against float64, from its own recorded inputs.

It needs no other run. What rounding explains is measured for each element: the effect of an ulp in the inputs, and the
rounding of the output. A side with elements beyond that did not compute what it was asked to: its kernel, its compiler or
its chip is at fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeGuard

import torch

from numscope.diagnose.replay.measures import bias, relative_error, to_double, unit_roundoff
from numscope.diagnose.replay.noise_floor import perturb
from numscope.diagnose.replay.replayable import Replayable

# Times the operator's own error; healthy kernels stay below 4.2 (docs/explanation/device-faults.md has the measurements).
TIMES_OPERATOR = 8.0
LEAST = 1.0  # of the whole output, in units of what an ulp explains: less is rounding, however exact the operator is
LEAST_OF_AN_ELEMENT = 4.0  # … of one element; healthy up to 2.8 where the operator itself has less than 1
_PERTURBATIONS = 6


@dataclass(frozen=True)
class OwnError:
    """The recorded output of a side against float64, beside the native replay of it here."""

    relative: float  # the recorded output's error
    replayed: float  # the error of the native replay here: the operator's own
    overall: float  # the recorded output's error, in units of what an ulp explains
    worst: float  # … of its worst element
    replayed_worst: float
    reproduced: bool  # the native replay gives the recorded output, within rounding
    bias: float
    dtype: str
    device: str
    recorded: torch.Tensor = field(repr=False, compare=False)
    exact: torch.Tensor = field(repr=False, compare=False)
    errors: torch.Tensor = field(repr=False, compare=False)  # of each element, in units of what an ulp explains

    def is_off(self, other: OwnError | None = None) -> bool:
        """Tell whether rounding does not explain the recorded output: the whole of it, or one element.

        The operator's own error is that of the replay here, or of the other side's recorded output if that is less: so a
        kernel that is wrong here too is seen.
        """
        operator = min(self.replayed, other.relative) if _comparable(other, self) else self.replayed
        if self.overall > LEAST and self.relative > TIMES_OPERATOR * operator:
            return True
        return self.worst > max(LEAST_OF_AN_ELEMENT, TIMES_OPERATOR * self._operator_worst(other))

    def elements_off(self, other: OwnError | None = None) -> torch.Tensor:
        """Return which elements are off: those beyond twice the operator's worst, and beyond what an ulp explains."""
        return self.errors > max(LEAST, 2 * self._operator_worst(other))

    def _operator_worst(self, other: OwnError | None) -> float:
        return min(self.replayed_worst, other.worst) if _comparable(other, self) else self.replayed_worst

    def to_dict(self) -> dict[str, object]:
        """Return the figures for the report."""
        return {
            "relative": self.relative,
            "operator": self.replayed,
            "reproduced": self.reproduced,
            "device": self.device,
        }


def _comparable(other: OwnError | None, own: OwnError) -> TypeGuard[OwnError]:
    return other is not None and other.dtype == own.dtype


def own_error(side: Replayable, floor: float) -> OwnError | None:
    """Return the own error of a side, None where its output was not kept; `floor` is what rounding does natively."""
    if not side.graph.kept(side.output):
        return None
    recorded = side.graph.data(side.output)
    exact, made = side.run({}, torch.float64), side.run({})
    scale = _explained(side, exact, recorded.dtype)
    errors, replayed = in_units(recorded, exact, scale), in_units(made, exact, scale)
    return OwnError(
        relative=relative_error(recorded, exact),
        replayed=relative_error(made, exact),
        overall=overall_units(recorded, exact, scale),
        worst=largest(errors),
        replayed_worst=largest(replayed),
        reproduced=relative_error(made, recorded) <= 8 * floor,
        bias=bias(recorded, exact) if recorded.shape == exact.shape else 0.0,
        dtype=side.graph.tensors[side.output].dtype,
        device=side.graph.tensors[side.output].device,
        recorded=recorded,
        exact=exact,
        errors=errors,
    )


def _explained(side: Replayable, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what an ulp in the inputs and the rounding of the output explain of each element's error.

    An element whose own figure is small by chance, or by cancellation, gets half of its row's.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = {number: side.graph.data(number) for number in side.inputs}
    squares = torch.zeros(exact.shape, dtype=torch.float64)
    for _ in range(_PERTURBATIONS):
        made = side.run({number: perturb(tensor, generator) for number, tensor in inputs.items()}, torch.float64)
        if made.shape == exact.shape:
            squares += (to_double(made) - to_double(exact)).abs().square().nan_to_num(0.0, math.inf)
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.where(squares > 0, math.inf, 0.0)  # a choice that an ulp turns; others are exact
    effect = (squares / _PERTURBATIONS).sqrt()
    row = effect.square().mean(-1, keepdim=True).sqrt() if effect.dim() else effect
    smallest = torch.finfo(dtype).smallest_normal * unit_roundoff(dtype)
    return (
        unit_roundoff(dtype) * to_double(exact).abs().nan_to_num(0.0, 0.0) + torch.maximum(effect, row / 2) + smallest
    )


def in_units(made: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return each element's error in units of what is explained of it; infinite where one alone is finite."""
    if made.shape != exact.shape:
        return torch.full(exact.shape or (1,), math.inf, dtype=torch.float64)
    a, b = to_double(made), to_double(exact)
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs() / scale).nan_to_num(math.inf, math.inf)


def overall_units(made: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor) -> float:
    """Return the error of a whole output in units of what is explained of it."""
    if made.shape != exact.shape:
        return math.inf
    a, b = to_double(made), to_double(exact)
    finite = a.isfinite() & b.isfinite() & scale.isfinite()
    explained = float(scale[finite].norm())
    error = float((a - b)[finite].abs().norm())
    return error / explained if explained else math.inf if error else 0.0


def largest(errors: torch.Tensor) -> float:
    return float(errors.max()) if errors.numel() else 0.0
