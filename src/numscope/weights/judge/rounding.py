"""How large a difference a cast, a conversion or the numbers' encoding explains, line by line."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from numscope.core.dtypes import FLOATS
from numscope.weights.measure import Difference
from numscope.weights.tensor import Tensor

_SINGLE = FLOATS["float32"].digits
_SIGMAS = 5.0
_SPREAD = 0.45  # of the root mean square of one error, spread evenly over a step: √(1.8 - 1) / 2; by √n that of n
_CREST = math.sqrt(12.0)  # of numbers spread evenly up to their largest: for these an encoding's tolerance holds


def tolerance(tensors: Sequence[Tensor]) -> float:
    """Return the relative error of a line that the dtypes explain: a cast's, or arithmetic in float32 and finer.

    Two sides of the same short dtype are not explained by rounding: nothing was computed between them.
    """
    floats = [FLOATS[tensor.dtype] for tensor in tensors if tensor.dtype in FLOATS]
    if len(floats) < len(tensors):
        return 0.0
    coarse = min(floats, key=lambda form: form.digits)
    if len({form.name for form in floats}) > 1 or coarse.digits >= _SINGLE:
        return 2 * coarse.unit_roundoff  # either way of rounding, to nearest or toward zero
    return 0.0


def encoding_tolerance(tensors: Sequence[Tensor]) -> float:
    """Return the relative error of a line that the encodings explain, 0 where there are none."""
    return max((tensor.encoding.tolerance for tensor in tensors if tensor.encoding), default=0.0)


def is_explained(difference: Difference, tensors: Sequence[Tensor]) -> NDArray[np.bool_]:
    """Return which lines differ by no more than dtypes and encodings explain."""
    limit = tolerance(tensors) * np.ones_like(difference.line_error)
    coded = encoding_tolerance(tensors)
    if coded:
        scatter = 1 + _SIGMAS * _SPREAD / math.sqrt(max(1, difference.elements // max(1, len(limit))))
        limit = np.maximum(limit, coded * scatter * np.maximum(1.0, difference.crest / _CREST))
    return np.asarray(difference.line_error <= limit)


def sqnr(relative: float) -> float:
    """Return a relative error as the ratio of signal and noise, in decibels."""
    return -20 * math.log10(relative) if relative > 0 else math.inf
