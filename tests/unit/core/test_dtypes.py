"""The table of dtypes against numpy's and ml_dtypes' own facts, and against rounding itself."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from numscope.core.dtypes import FLOATS, SINGLE, is_discrete, rounding_near_zero, unit_roundoff

REAL = [name for name in sorted(FLOATS) if not name.startswith("complex") and name != "float4_e2m1fn_x2"]


@pytest.mark.parametrize("name", REAL)
def test_a_format_is_what_its_library_says(name: str) -> None:
    form, facts = FLOATS[name], ml_dtypes.finfo(name)
    assert form.largest == float(facts.max)
    assert form.normal == float(facts.smallest_normal)
    assert form.smallest == float(facts.smallest_subnormal)
    assert 2.0 ** (1 - form.digits) == float(facts.eps)


@pytest.mark.parametrize("name", [name for name in REAL if FLOATS[name].bits < 64])
def test_the_unit_roundoff_is_the_largest_error_of_rounding_to_the_nearest(name: str) -> None:
    form, dtype = FLOATS[name], np.dtype(getattr(ml_dtypes, name, name))
    values = 1.0 + 2 * form.unit_roundoff * np.linspace(0, 1, 513)  # from 1 to its neighbour
    error = np.abs(values.astype(dtype).astype(np.float64) - values) / values
    assert error.max() == form.unit_roundoff / (1 + form.unit_roundoff)  # halfway


@pytest.mark.parametrize(
    ("dtype", "digits"),
    [("float32", 24), ("float16", 11), ("bfloat16", 8), ("float8_e4m3fn", 4), ("float8_e5m2", 3), ("complex64", 24)],
)
def test_the_unit_roundoff_follows_from_the_significant_bits(dtype: str, digits: int) -> None:
    assert unit_roundoff(dtype) == 2.0**-digits


def test_integers_are_exact_and_discrete() -> None:
    for dtype in ("int64", "uint8", "bool"):
        assert is_discrete(dtype)
        assert unit_roundoff(dtype) == 0.0
        assert rounding_near_zero(dtype) == 0.0
    assert not is_discrete("complex64")
    assert unit_roundoff("float32") == SINGLE


def test_only_formats_of_a_short_range_round_what_a_model_computes_near_zero() -> None:
    assert rounding_near_zero("float16") == 2.0**-25
    assert rounding_near_zero("float8_e4m3fn") == 2.0**-10
    assert rounding_near_zero("float8_e5m2") == 2.0**-17
    assert rounding_near_zero("bfloat16") == rounding_near_zero("float32") == 0.0


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e5m2"])
def test_a_tie_at_the_edge_overflows(name: str) -> None:
    form, dtype = FLOATS[name], np.dtype(getattr(ml_dtypes, name, name))
    assert form.overflows(form.overflow_edge)
    edge = np.array([form.overflow_edge], np.float32)
    below = np.nextafter(edge, np.float32(0))
    assert not form.overflows(below.astype(np.float64))
    with np.errstate(over="ignore"):
        assert not np.isfinite(edge.astype(dtype).astype(np.float64))
        assert below.astype(dtype).astype(np.float64) == form.largest


def test_a_tie_at_the_edge_of_e4m3_rounds_to_the_even_largest_number() -> None:
    form = FLOATS["float8_e4m3fn"]
    assert form.overflow_edge == 464.0
    assert not form.overflows(464.0)
    assert form.overflows(np.nextafter(464.0, 500))
