"""Says what is wrong with a tensor from its own values and the reference's: zeros, a scale, a slice, a bit, a dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numscope.core.dtypes import FLOATS
from numscope.weights.measure import Difference
from numscope.weights.pair import FaultName
from numscope.weights.tensor import Tensor

_SIGMAS = 5.0  # of a statistic's own spread, beyond which it is not what a distribution gives


@dataclass(frozen=True)
class Finding:
    """A named difference; `is_loss` says that it is no more than rounding: another dtype on the way."""

    fault: FaultName
    reason: str
    repair: str | None = None
    is_loss: bool = False
    factor: float | None = None  # of a wrong scale
    offset: float | None = None


def explain(a: Tensor, b: Tensor, d: Difference) -> Finding | None:
    """Return what the values say, or None where they say no more than that they differ."""
    if d.non_finite_a != d.non_finite_b:
        where = "A" if d.non_finite_a > d.non_finite_b else "B"
        count = max(d.non_finite_a, d.non_finite_b)
        return Finding("non-finite", f"{count} elements of {where} are NaN or infinite, and finite on the other side")
    if not d.square_a and d.square_b:
        return Finding("zero", "all zero: it was never loaded or was masked", "load it")
    if d.between:
        return _between(d)
    return _bit(a, d) or _factor(a, b, d)


def _between(d: Difference) -> Finding:
    name = d.between[0]
    digits = FLOATS[name].digits
    is_loss = digits >= FLOATS["bfloat16"].digits
    reason = f"every value is one of {name}: it went through that dtype on its way"
    return Finding("dtype", f"{reason} (relative error {d.relative:.1e})", f"keep it out of {name}", is_loss)


def _bit(a: Tensor, d: Difference) -> Finding | None:
    if d.differing != 1 or not d.few or len(d.few[0].bits) != 1:
        return None
    element = d.few[0]
    place = _place(a, element.line, element.at)
    bit = element.bits[0]
    return Finding(
        "bit", f"one bit is flipped: bit {bit} of the element {place}, {element.a:.6g} in place of {element.b:.6g}"
    )


def _place(tensor: Tensor, line: int, at: int) -> str:
    index = np.unravel_index(line * tensor.width + at, tensor.shape) if tensor.shape else ()
    return f"[{', '.join(str(int(number)) for number in index)}]"


def resolution(a: Tensor, b: Tensor) -> float:
    """Return the relative error that arithmetic in the coarser dtype leaves: three roundings, of a product and its factors."""
    units = [FLOATS[tensor.dtype].unit_roundoff for tensor in (a, b) if tensor.dtype in FLOATS]
    return 3 * max(units, default=0.0)


def _factor(a: Tensor, b: Tensor, d: Difference) -> Finding | None:
    """Name a factor on all elements, or a number added to all."""
    limit = max(resolution(a, b), 1e-7)  # sums in float64 tell a residual from rounding down to about 1e-8
    if d.square_a and d.square_b and d.beside_scale < limit and abs(d.scale - 1) > limit:
        return Finding(
            "scale", f"{_number(d.scale)} times what it should be", f"divide by {_number(d.scale)}", False, d.scale
        )
    size = math.sqrt(d.square_b / d.elements) / abs(d.offset) if d.elements and d.offset else math.inf
    if d.elements > 1 and d.beside_offset < limit * max(1.0, size) * 2 and abs(d.offset) > 0:
        return Finding(
            "scale",
            f"{_number(d.offset)} was added to every element",
            f"subtract {_number(d.offset)}",
            False,
            None,
            d.offset,
        )
    return None


def _number(value: float) -> str:
    return f"{value:.6g}"


def slice_of(d: Difference, wrong: NDArray[np.bool_]) -> Finding | None:
    """Name the rows, or the columns, that differ, where most do not."""
    for word, differs in (("rows", wrong), ("columns", d.column_differs)):
        count = int(differs.sum())
        if 0 < count <= len(differs) // 2:
            return Finding(
                "slice", f"{word} {spans(differs)} differ (relative error {d.relative:.1e}); all others agree"
            )
    return None


def spans(differs: NDArray[np.bool_], most: int = 4) -> str:
    """Return where something holds, as ranges: 0–31, 64–95."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], differs.astype(np.int8), [0]])))
    found = [f"{start}" if stop - start == 1 else f"{start}–{stop - 1}" for start, stop in zip(edges[::2], edges[1::2])]
    more = f" and {len(found) - most} more ranges" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def initialisation(tensor: Tensor, d: Difference) -> str | None:
    """Return which initialisation values are like: constant, uniform, normal; None for any other distribution."""
    count = d.elements
    if not count or not d.square_a:
        return None
    mean = d.sum_a / count
    variance = d.square_a / count - mean**2
    if variance <= (abs(mean) * 1e-6) ** 2:
        return f"all elements are {mean:.4g}"
    if tensor.is_vector or count < 100:
        return None
    if abs(mean) > _SIGMAS * math.sqrt(variance / count):
        return None
    kurtosis = d.fourth_a / count / (d.square_a / count) ** 2
    # The spread of a sample's kurtosis: √(24/n) for a normal distribution, √(0.37·…/n) and less for a uniform one.
    if abs(kurtosis - 1.8) < _SIGMAS * math.sqrt(1.2 / count):
        return f"uniform random numbers up to {d.largest_a:.4g}"
    if abs(kurtosis - 3) < _SIGMAS * math.sqrt(24 / count):
        return f"normal random numbers with a standard deviation of {math.sqrt(variance):.4g}"
    return None


def is_unrelated(d: Difference) -> bool:
    """Tell whether two tensors have no more in common than two draws of random numbers."""
    if not d.square_a or not d.square_b or d.elements < 2:
        return False
    mean_a = d.sum_a / d.elements
    mean_b = mean_a - d.offset
    variance = (d.square_a / d.elements - mean_a**2) * (d.square_b / d.elements - mean_b**2)
    covariance = d.product / d.elements - mean_a * mean_b
    if variance <= 0:
        return True  # one of them is constant
    return abs(covariance) / math.sqrt(variance) < _SIGMAS / math.sqrt(d.elements)
