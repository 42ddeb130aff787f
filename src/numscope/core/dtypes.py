"""The one table of floating-point formats: precision and range of every dtype that a run can hold.

Dtypes are known by torch's short names (`float32`, `bfloat16`, `float8_e4m3fn`), which is how the tables of a run write
them. A complex dtype has the format of its parts. A dtype that is not in the table (integers, bool) holds labels or
counts: it is exact, and compared by equality.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# The elements of a tensor have any dtype, bfloat16 and the kinds of float8 included, for which numpy has no type.
AnyArray: TypeAlias = NDArray[Any]
AnyDtype: TypeAlias = np.dtype[Any]


@dataclass(frozen=True)
class FloatFormat:
    """A floating-point format; magnitudes alone count, as all formats are symmetric around zero."""

    name: str
    bits: int
    digits: int  # significant bits, the leading one included even where it is implicit
    largest: float  # the largest finite number
    normal: float  # the smallest number that has all its digits

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of rounding a number to the nearest of p digits: 2⁻ᵖ."""
        return 2.0**-self.digits

    @property
    def smallest(self) -> float:
        """The smallest number above zero; near zero, numbers are this far apart."""
        return self.normal * 2.0 ** (1 - self.digits)

    @property
    def overflow_edge(self) -> float:
        """The midpoint between the largest number and the one that would follow: rounding decides here."""
        return self.largest + 0.5 * self._last_gap

    @property
    def _last_gap(self) -> float:
        """The distance between the largest number and its predecessor."""
        _, exponent = math.frexp(self.largest)
        return 2.0 ** (exponent - self.digits)

    def overflows(self, magnitude: float | NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which magnitudes overflow when they are rounded to nearest, ties to even."""
        is_odd = self.largest / self._last_gap % 2 == 1  # of an odd significand: a tie goes up, out of the range
        exceeds = np.greater_equal if is_odd else np.greater
        return np.asarray(exceeds(magnitude, self.overflow_edge))


_REAL = (
    FloatFormat("float64", 64, 53, (2 - 2.0**-52) * 2.0**1023, 2.0**-1022),
    FloatFormat("float32", 32, 24, (2 - 2.0**-23) * 2.0**127, 2.0**-126),
    FloatFormat("bfloat16", 16, 8, (2 - 2.0**-7) * 2.0**127, 2.0**-126),
    FloatFormat("float16", 16, 11, 65504.0, 2.0**-14),
    FloatFormat("float8_e5m2", 8, 3, 57344.0, 2.0**-14),
    FloatFormat("float8_e5m2fnuz", 8, 3, 57344.0, 2.0**-15),
    FloatFormat("float8_e4m3", 8, 4, 240.0, 2.0**-6),
    FloatFormat("float8_e4m3fn", 8, 4, 448.0, 2.0**-6),
    FloatFormat("float8_e4m3fnuz", 8, 4, 240.0, 2.0**-7),
    FloatFormat("float8_e4m3b11fnuz", 8, 4, 30.0, 2.0**-10),
    FloatFormat("float8_e3m4", 8, 5, 15.5, 2.0**-2),
    FloatFormat("float8_e8m0fnu", 8, 1, 2.0**127, 2.0**-127),
    FloatFormat("float6_e3m2fn", 6, 3, 28.0, 2.0**-2),
    FloatFormat("float6_e2m3fn", 6, 4, 7.5, 1.0),
    FloatFormat("float4_e2m1fn", 4, 2, 6.0, 1.0),
)
FLOATS = {form.name: form for form in _REAL}
_PAIRS = {  # complex numbers, and two numbers in one byte
    "complex128": FLOATS["float64"],
    "complex64": FLOATS["float32"],
    "complex32": FLOATS["float16"],
    "float4_e2m1fn_x2": FLOATS["float4_e2m1fn"],
}
FLOATS |= {name: replace(form, name=name, bits=2 * form.bits) for name, form in _PAIRS.items()}

SINGLE = FLOATS["float32"].unit_roundoff


def unit_roundoff(dtype: str) -> float:
    """Return the unit roundoff of a dtype, 0 for one that is exact."""
    form = FLOATS.get(dtype)
    return form.unit_roundoff if form is not None else 0.0


def is_discrete(dtype: str) -> bool:
    """Return whether a dtype holds labels or counts (integers, bool), not rounded numbers."""
    return dtype not in FLOATS


def rounding_near_zero(dtype: str) -> float:
    """Return the largest absolute error of rounding a tiny number: half the distance of neighbours near zero.

    It is 0 for the formats with an exponent of eight bits or more, which reach below anything that a model computes.
    """
    form = FLOATS.get(dtype)
    return form.smallest / 2 if form is not None and form.normal > 2.0**-100 else 0.0
