"""The older systems' measures of two tensors, in float64, with the faults of their documents corrected.

Cosine is Σab / (‖a‖‖b‖), not 0.5 + 0.5·cos, nor without the square. MAPE is a ratio to the reference; where the reference
is 0 there is none, and those elements are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]  # of whatever dtype was dumped
Row = npt.NDArray[np.float64]  # the elements of an array, in one dimension


@dataclass(frozen=True)
class Measures:
    """How far a target is from its reference; a measure that is not defined is NaN."""

    cosine: float
    rmse: float
    mape: float
    max_abs_err: float
    max_rel_err: float
    zeros: int  # reference elements that are 0, left out of mape and max_rel_err
    l1: float
    mae: float
    mse: float


def wide(array: Array) -> Row:
    """Return the elements as one row of float64, a complex number as two."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    return flat.astype(np.float64)


def cosine(a: Row, b: Row) -> float:
    """Return the cosine of two rows: 1 where both are zero, NaN where only one is."""
    scale_a, scale_b = (float(np.max(np.abs(row), initial=0.0)) for row in (a, b))
    if not a.size or not (np.isfinite(scale_a) and np.isfinite(scale_b)):
        return float("nan")
    if scale_a == 0 or scale_b == 0:
        return 1.0 if scale_a == scale_b else float("nan")
    if np.array_equal(a, b):
        return 1.0  # the quotient below would be rounded
    a, b = a / scale_a, b / scale_b  # so that no square overflows or vanishes
    value = float(a @ b / (np.sqrt(a @ a) * np.sqrt(b @ b)))
    return min(1.0, max(-1.0, value))


def measure(target: Array, reference: Array) -> Measures:
    """Measure a target against its reference; both have the same number of elements."""
    a, b = wide(target), wide(reference)
    if not a.size:
        nan = float("nan")
        return Measures(nan, 0.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(a - b)
        same = a == b  # infinities that agree differ by nothing
        difference[same] = 0.0
        nonzero = b != 0
        ratio = difference[nonzero] / np.abs(b[nonzero])
        ratio[same[nonzero]] = 0.0
        mse = float(np.mean(difference**2))
        return Measures(
            cosine=cosine(a, b),
            rmse=float(np.sqrt(mse)),
            mape=float(ratio.mean()) if ratio.size else float("nan"),
            max_abs_err=float(difference.max()),
            max_rel_err=float(ratio.max()) if ratio.size else float("nan"),
            zeros=int((~nonzero).sum()),
            l1=float(difference.sum()),
            mae=float(difference.mean()),
            mse=mse,
        )
