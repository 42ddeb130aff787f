"""What the dtypes of a run mean for rounding: unit roundoff, and which are compared as numbers or as labels."""

from __future__ import annotations

from collections.abc import Sequence

SINGLE = 2.0**-24  # float32's: where a run rounds so, double precision on one side is no other computation

_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8 / 2,
    "tfloat32": 2.0**-11,
    "float8_e4m3fn": 2.0**-4,
    "float8_e4m3fnuz": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "float8_e5m2fnuz": 2.0**-3,
    "float8_e8m0fnu": 2.0**-1,
    "float4_e2m1fn_x2": 2.0**-2,
    "complex128": 2.0**-53,
    "complex64": 2.0**-24,
    "complex32": 2.0**-11,
}


def unit_roundoff(dtype: str) -> float:
    """Return the largest relative error of one rounding to the dtype; 0 for integers and bool, which are exact."""
    return _ROUNDOFF.get(dtype, 0.0)


def common_roundoff(sides: Sequence[float], coarser: bool) -> float:
    """Return the roundoff that two sides may differ by: the coarser one's, or else the finer one's, but never less than
    float32's unless both are finer."""
    if coarser or not sides:
        return max(sides, default=0.0)
    least = min(sides)
    return max(least, min(max(sides), SINGLE)) if least else 0.0


_STEP = {"float16": 2.0**-25, "float8_e4m3fn": 2.0**-10, "float8_e4m3fnuz": 2.0**-11, "float8_e5m2": 2.0**-17}


def smallest_step(dtype: str) -> float:
    """Return half the distance between neighbours near zero, where it matters: small numbers round to multiples of it."""
    return _STEP.get(dtype, 0.0)


def is_discrete(dtype: str) -> bool:
    """Return whether the dtype holds labels or counts (integers, bool), not rounded numbers."""
    return dtype not in _ROUNDOFF
