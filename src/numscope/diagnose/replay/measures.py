"""Measures of how far apart two tensors are."""

from __future__ import annotations

import math

import torch

from numscope.core import dtypes as table


def to_double(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in double precision."""
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the relative L2 error of one tensor against another; infinite where they can't be compared."""
    if actual.shape != expected.shape:
        return math.inf
    a, b = to_double(actual).flatten(), to_double(expected).flatten()
    finite = torch.isfinite(a) & torch.isfinite(b)
    if not bool(finite.all()):
        rest = ~finite
        same = (a[rest] == b[rest]) | (torch.isnan(a[rest]) & torch.isnan(b[rest]))
        if not bool(same.all()):
            return math.inf
        a, b = a[finite], b[finite]
    if not a.numel():
        return 0.0
    # Scaled by the largest element: the squares of fp64 values near its range would overflow.
    scale = float(torch.maximum(a.abs().max(), b.abs().max()))
    if scale == 0.0:
        return 0.0
    difference = float((a / scale - b / scale).abs().pow(2).sum().sqrt())
    size = float((b / scale).abs().pow(2).sum().sqrt())
    if difference == 0.0:
        return 0.0
    return difference / size if size else math.inf


def unit_roundoff(*dtypes: torch.dtype) -> float:
    """Return the largest unit roundoff among dtypes; that of float32 where all are exact."""
    return (
        max((table.unit_roundoff(str(dtype).removeprefix("torch.")) for dtype in dtypes), default=0.0) or table.SINGLE
    )


def bias(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the mean signed error over its root mean square: near 0 for rounding, near ±1 for a shift."""
    error = (to_double(actual) - to_double(expected)).flatten()
    error = error[torch.isfinite(error)]
    if not error.numel():
        return 0.0
    rms = float(error.pow(2).mean().sqrt())
    return float(error.mean()) / rms if rms else 0.0
