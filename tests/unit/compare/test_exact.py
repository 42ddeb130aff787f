"""Exact measures: as numpy's float64 has them, and defined for every value and dtype."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from numscope.compare.measure.exact import CHUNK, Exact, measure_arrays

pytestmark = pytest.mark.usefixtures("both_forms")


def measured(a: Any, b: Any, dtype: str | None = None) -> Exact:
    a, b = np.asarray(a), np.asarray(b)
    return measure_arrays(a, b, (dtype or a.dtype.name, dtype or b.dtype.name))


ordinary = st.floats(-1e6, 1e6, width=32).filter(lambda x: x == 0 or abs(x) > 1e-6)
pairs = arrays.array_shapes(max_dims=3, max_side=8).flatmap(
    lambda shape: st.tuples(*(arrays.arrays(np.float32, shape, elements=ordinary) for _ in range(2)))
)


@settings(deadline=None)
@given(pairs)
def test_measures_are_those_of_float64(both: tuple[Any, Any]) -> None:
    a, b = both
    found = measured(a, b)
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    d = x - y
    assert found.euclid == pytest.approx(np.linalg.norm(d), rel=1e-6)
    assert found.rmse == pytest.approx(np.sqrt(np.mean(d * d)), rel=1e-6)
    assert found.max_abs_err == pytest.approx(np.abs(d).max(), rel=1e-6)
    assert found.target_std == pytest.approx(x.std(), rel=1e-4, abs=1e-4 * np.abs(x).max())
    if np.linalg.norm(y) > 0:
        assert found.relative_l2 == pytest.approx(np.linalg.norm(d) / np.linalg.norm(y), rel=1e-6)
    there = y != 0
    assert found.mape_excluded == (~there).sum()
    if there.any():
        assert found.mape == pytest.approx((np.abs(d[there]) / np.abs(y[there])).mean(), rel=1e-5)
    if np.linalg.norm(x) > 0 and np.linalg.norm(y) > 0:
        assert found.cosine == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y), abs=1e-6)
    share = np.isclose(x, y, rtol=1.3e-6, atol=1e-5)
    assert found.mismatch_share == pytest.approx(1 - share.mean(), abs=2 / x.size)


@given(st.integers(1, 3 * CHUNK), st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_chunks_do_not_show(size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    b = random.standard_normal(size).astype(np.float32)
    a = b.copy()
    place = int(random.integers(size))
    a[place] += 1
    found = measured(a, b)
    assert found.euclid == pytest.approx(float(a[place]) - float(b[place]), rel=1e-6)
    assert found.first_index == found.worst_index == f"[{place}]"


def test_the_same_nan_on_both_sides_is_left_out() -> None:
    found = measured([1.0, np.nan, np.inf], [1.0, np.nan, np.inf])
    assert (found.relative_l2, found.max_abs_err, found.within_0_1_percent) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_non_finite_value_on_one_side_makes_the_errors_infinite(value: float) -> None:
    found = measured([1.0, value, 3.0], [1.0, 2.0, 3.0])
    assert found.relative_l2 == found.euclid == found.rmse == found.max_abs_err == math.inf
    assert found.worst_index == "[1]"


def test_opposite_infinities_are_not_the_same() -> None:
    assert measured([np.inf], [-np.inf]).relative_l2 == math.inf


def test_an_empty_tensor_has_no_error_and_no_cosine() -> None:
    found = measured(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32))
    assert (found.relative_l2, found.cosine, found.rmse) == (0.0, None, None)


def test_a_0d_tensor_is_one_element() -> None:
    found = measured(np.float32(2), np.float32(1))
    assert (found.relative_l2, found.max_abs_err, found.worst_index) == (1.0, 1.0, "[]")


def test_two_zero_tensors_are_alike_and_a_zero_reference_has_no_relative_error() -> None:
    assert measured([0.0, 0.0], [0.0, 0.0]).cosine == 1.0
    against_zero = measured([1.0, 0.0], [0.0, 0.0])
    assert (against_zero.relative_l2, against_zero.cosine, against_zero.mape) == (math.inf, None, None)


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8, np.bool_])
def test_integers_and_bool_are_compared_as_numbers(dtype: Any) -> None:
    found = measured(np.array([1, 0, 1, 1], dtype), np.array([1, 1, 1, 1], dtype))
    assert (found.euclid, found.rmse, found.ulp_max) == (1.0, 0.5, None)


def test_complex_numbers_count_as_two_real_ones() -> None:
    found = measured(np.array([1 + 1j, 2], np.complex64), np.array([1, 2], np.complex64))
    assert found.euclid == 1.0
    assert found.worst_index == "[0]"


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_small_dtypes_are_exact(name: str) -> None:
    dtype = getattr(ml_dtypes, name)
    b = np.linspace(0.5, 2, 9000).astype(dtype)
    a = b.copy()
    a[17] = dtype(4)
    found = measured(a, b)
    assert found.max_abs_err == 4 - float(b[17])
    assert found.worst_index == "[17]"


def test_two_precisions_are_compared_in_float64() -> None:
    x = np.linspace(1, 2, 100)
    found = measure_arrays(x.astype(ml_dtypes.bfloat16), x.astype(np.float32), ("bfloat16", "float32"))
    assert 1e-4 < (found.relative_l2 or 0) < 4e-3
    assert found.ulp_max is None


def test_ulp_distance_counts_the_numbers_between() -> None:
    b = np.array([1.0, 1.0, -1.0, 0.0], np.float32)
    a = np.array([np.nextafter(np.float32(1), np.float32(2)), 1.0, -1.0, -0.0], np.float32)
    found = measured(a, b)
    assert (found.ulp_max, found.ulp_median) == (1.0, 0.0)


@given(arrays.arrays(np.float32, 40000, elements=st.floats(-1, 1, width=32)), st.integers(0, 39999))
@settings(max_examples=5, deadline=None)
def test_the_furthest_element_is_found_outside_the_sample(b: Any, place: int) -> None:
    a = b.copy()
    a[place] = np.float32(8)
    x, y = (int(np.int64(np.float32(v).view(np.int32))) for v in (a[place], b[place]))
    y = y if y >= 0 else -(y + 2**31)
    assert measured(a, b).ulp_max == abs(x - y)


def test_ulp_distance_of_powers_of_two_without_a_sign() -> None:
    powers = 2.0 ** np.arange(-100, 101, dtype=np.float32)
    b = np.resize(powers, 40_000).astype(ml_dtypes.float8_e8m0fnu)
    a = (2 * np.resize(powers, 40_000)).astype(ml_dtypes.float8_e8m0fnu)
    assert measured(a, b).ulp_max == 1.0
    a[7] = 2.0**100
    assert measured(a, b).ulp_max == 193.0


def test_bias_and_correlation_tell_a_wrong_scale_from_rounding() -> None:
    random = np.random.default_rng(0)
    b = random.standard_normal(4096).astype(np.float32)
    assert abs(measured(b * np.float32(1.001), b).correlation or 0) > 0.99
    noisy = b + (1e-4 * random.standard_normal(4096)).astype(np.float32)
    assert abs(measured(noisy, b).correlation or 0) < 0.1
    assert measured(b + np.float32(1e-3), b).bias == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ((slice(None), slice(None)), "whole"),
        ((3, slice(None)), "row"),
        ((slice(None), 5), "channel"),
        ((slice(8, 16), slice(8, 16)), "block"),
        ((3, 5), "single"),
    ],
)
def test_structure_says_where_the_error_lies(where: Any, name: str) -> None:
    b = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    a = b.copy()
    a[where] += np.float32(0.5)
    assert measured(a, b).structure == name


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ((slice(700, 720), slice(None)), "row"),
        ((slice(None), 5), "channel"),
        ((slice(1200, 1300), slice(8, 16)), "block"),
        ((1300, 5), "single"),
        (([3, 400, 800, 1200, 1499], [5, 60, 700, 8, 900]), "single"),
    ],
)
def test_structure_is_seen_in_a_large_tensor_of_which_a_part_is_looked_at(where: Any, name: str) -> None:
    b = np.ones((1500, 1024), np.float32)
    a = b.copy()
    a[where] += np.float32(0.5)
    assert measured(a, b).structure == name


def test_an_error_that_begins_with_a_single_element_is_named_for_all_of_it() -> None:
    b = np.ones((1500, 1024), np.float32)
    a = b.copy()
    a[3, 5] = 2
    a[400:, :] = 2
    assert measured(a, b).structure == "whole"


def test_values_that_are_not_finite_on_one_side_are_no_structure_of_their_own() -> None:
    random = np.random.default_rng(0)
    b = random.standard_normal((1500, 1024)).astype(np.float32)
    a = b + random.standard_normal(b.shape).astype(np.float32)
    a[random.random(a.shape) < 1e-3] = np.inf
    assert measured(a, b).structure == "whole"


@pytest.mark.parametrize("shape", [(1500, 1024), (2048, 1024), (64, 24_000), (3, 700_000), (2_000_000,)], ids=str)
def test_an_error_all_over_a_large_tensor_has_no_other_structure(shape: tuple[int, ...]) -> None:
    b = np.ones(shape, np.float32)
    assert measured(b + np.float32(0.5), b).structure == "whole"


def test_a_complex_tensor_is_measured_against_a_real_one() -> None:
    real = np.arange(12, dtype=np.float32).reshape(3, 4)
    same = measure_arrays(real.astype(np.complex64), real, ("complex64", "float32"))
    assert same.relative_l2 == 0.0
    off = measure_arrays(real, real + np.complex64(1j), ("float32", "complex64"))
    assert off.max_abs_err == 1.0
    assert off.worst_index is not None
