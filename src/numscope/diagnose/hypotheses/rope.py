"""Rotary position embedding: rotation of halves or of neighbours, and its base."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import torch

from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis
from numscope.diagnose.replay.measures import relative_error

Turn = Callable[[torch.Tensor], torch.Tensor]


def halves(x: torch.Tensor) -> torch.Tensor:
    """Return (-second half, first half)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def neighbours(x: torch.Tensor) -> torch.Tensor:
    """Return (-x1, x0, -x3, x2, …)."""
    return torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)


_FORMS: tuple[tuple[str, Turn], ...] = (("halves", halves), ("neighbours (interleaved)", neighbours))


@hypothesis("rotary embedding")
def rotary(case: Case) -> Iterator[Repair]:
    """Rotate an input in the other form: the input alone, or combined with its cosines and sines."""
    inputs = [case.input64(number) for number in case.target.inputs]
    inputs = [tensor for tensor in inputs if tensor.is_floating_point() and tensor.dim() and tensor.shape[-1] % 2 == 0]
    for (now, turn), (then, other) in itertools.permutations(_FORMS):
        for made, there in _turned(inputs, turn, other, case):
            if (
                relative_error(made, case.target_output) <= 1e-9
                and relative_error(there, case.reference_output) <= 1e-9
            ):
                yield Repair.giving(f"RoPE turning {then} (now {now})", there)


def _turned(
    inputs: list[torch.Tensor], turn: Turn, other: Turn, case: Case
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for x in inputs:
        if x.shape == case.target_output.shape:
            for sign in (1, -1):
                yield sign * turn(x), sign * other(x)
    for x, cosine, sine in itertools.permutations(inputs[:5], 3):
        try:
            made, there = x * cosine + turn(x) * sine, x * cosine + other(x) * sine
        except RuntimeError:
            continue
        if made.shape == case.target_output.shape:
            yield made, there


@hypothesis("rotary base")
def base(case: Case) -> Iterator[Repair]:
    """Take the reference's base, where both outputs are frequencies of a rotary embedding."""
    now, then = rotary_base(case.target_output), rotary_base(case.reference_output)
    if now is not None and then is not None and round(now) != round(then):
        yield Repair(f"RoPE's base {then:.6g} (now {now:.6g})", lambda: case.reference_output)


def rotary_base(frequencies: torch.Tensor) -> float | None:
    """Return the base b of frequencies b^(-i/n), i = 0 … n-1; None where the tensor is something else."""
    x = frequencies.double().flatten()
    if x.numel() < 4 or frequencies.numel() != frequencies.shape[-1] or not bool((x > 0).all()) or float(x[0]) != 1.0:
        return None
    ratio = float(x[1])
    if ratio >= 1 or not torch.allclose(x, ratio ** torch.arange(x.numel(), dtype=torch.float64), rtol=1e-4):
        return None
    return math.pow(float(x[-1]), -x.numel() / (x.numel() - 1))
