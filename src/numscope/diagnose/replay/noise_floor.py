"""The noise floor: the measured effect of an ulp in the inputs of a subgraph on its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from numscope.diagnose.replay.measures import relative_error

REPLAYS = 6
_BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16}  # by the size of an element


def noise_floor(
    run: Callable[[Mapping[int, torch.Tensor]], torch.Tensor],
    inputs: Mapping[int, torch.Tensor],
    replays: int = REPLAYS,
    seed: int = 0,
) -> float:
    """Return the 99th percentile of the output's relative error when each input is randomly moved by up to an ulp.

    `run` computes the output from inputs by number. Exact zeros and integers stay as they are.
    """
    reference = run(inputs)
    generator = torch.Generator().manual_seed(seed)
    errors = []
    for _ in range(replays):
        moved = {number: perturb(tensor, generator) for number, tensor in inputs.items()}
        errors.append(relative_error(run(moved), reference))
    finite = [error for error in errors if np.isfinite(error)]
    return float(np.percentile(finite, 99)) if finite else 0.0


def perturb(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a tensor with each element moved by -1, 0 or 1 ulp, at random."""
    if not tensor.is_floating_point() or tensor.element_size() not in _BITS:
        return tensor
    step = torch.randint(-1, 2, tensor.shape, generator=generator)
    width = _BITS[tensor.element_size()]
    bits = tensor.contiguous().view(width)
    # The next number in the direction of larger magnitude has the next bit pattern.
    moved = torch.where((tensor == 0) | ~torch.isfinite(tensor), bits, bits + step.to(width)).view(tensor.dtype)
    return torch.where(torch.isfinite(moved), moved, tensor)
