"""A buffer that a kernel left, held against float64, eager and casts elided, all from what the kernel was given."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from numscope.diagnose.regions.graph import Graph, Widen, double, elided, own
from numscope.diagnose.replay.measures import relative_error, to_double, unit_roundoff
from numscope.diagnose.replay.own_error import (
    LEAST,
    LEAST_OF_AN_ELEMENT,
    TIMES_OPERATOR,
    in_units,
    largest,
    overall_units,
)

_PERTURBATIONS = 6
Run = Callable[[Widen, torch.Generator | None], torch.Tensor]


@dataclass(frozen=True)
class Judged:
    """The errors of one tensor against float64."""

    compiled: float
    eager: float
    elided: float  # of eager with the casts inside left out
    overall: float  # in units of what rounding explains
    worst: float  # … of the worst element
    others_worst: float

    @property
    def is_off(self) -> bool:
        """Tell whether rounding does not explain what the kernel left: the rule of `OwnError.is_off`."""
        others = max(self.eager, self.elided)
        if self.overall > LEAST and self.compiled > TIMES_OPERATOR * others:
            return True
        return self.worst > max(LEAST_OF_AN_ELEMENT, TIMES_OPERATOR * self.others_worst)

    @property
    def has_elided_casts(self) -> bool:
        """Tell whether the kernel is nearer to float64 than eager, about as much as eager with its casts left out."""
        is_nearer = self.elided < self.eager and self.compiled < self.eager
        return is_nearer and abs(self.compiled - self.elided) < abs(self.compiled - self.eager)


def judge(recorded: torch.Tensor, run: Run) -> Judged:
    """Judge a recorded tensor; `run` makes it in the dtypes that it is given, and with results moved by an ulp."""
    exact = run(double, None)
    if exact.shape != recorded.shape and exact.numel() == recorded.numel() and recorded.is_contiguous():
        recorded = recorded.reshape(exact.shape)
    dtype = recorded.dtype
    made, wide = run(own, None), run(elided, None).to(dtype)
    scale = _explained(run, exact, dtype)
    others = max(largest(in_units(made, exact, scale)), largest(in_units(wide, exact, scale)))
    return Judged(
        compiled=relative_error(recorded, exact),
        eager=relative_error(made, exact),
        elided=relative_error(wide, exact),
        overall=overall_units(recorded, exact, scale),
        worst=largest(in_units(recorded, exact, scale)),
        others_worst=others,
    )


def runner(graph: Graph, name: str, known: Mapping[str, object]) -> Run:
    """Return what makes the value of a node from known ones."""
    names = graph.needed(name, known)
    read = {one for node in names for one in graph.inputs[node]} - {name}
    if graph.nodes[name]["op"] in ("placeholder", "get_attr"):  # a copy of an input
        read.add(name)
    given = {one: value for one, value in known.items() if one in read}

    def run(widen: Widen, generator: torch.Generator | None) -> torch.Tensor:
        value = graph.run(names, given, widen, generator)[name]
        return value  # type: ignore[no-any-return]

    return run


def _explained(run: Run, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what rounding explains of each element: each node's result moved by an ulp, and the output's rounding."""
    squares = torch.zeros(exact.shape, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for _ in range(_PERTURBATIONS):
        moved = run(double, generator)
        squares += (to_double(moved) - to_double(exact)).abs().square().nan_to_num(0.0, math.inf)
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.where(squares > 0, math.inf, 0.0)  # a choice that an ulp turns; others are exact
    effect = (squares / _PERTURBATIONS).sqrt()
    row = effect.square().mean(-1, keepdim=True).sqrt() if effect.dim() else effect
    smallest = torch.finfo(dtype).smallest_normal * unit_roundoff(dtype)
    return (
        unit_roundoff(dtype) * to_double(exact).abs().nan_to_num(0.0, 0.0) + torch.maximum(effect, row / 2) + smallest
    )
