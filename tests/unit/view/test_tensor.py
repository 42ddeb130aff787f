"""The pictures of two arrays: differences, ULP, planes and the worst elements."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numscope.core.errors import SettingsError
from numscope.report.pages.frames import decode
from numscope.view.tensor import BINS, PLANE, TensorPair, difference, elements, histogram, plane, ulps, worst

random = np.random.default_rng(0)


def test_equal_infinities_and_two_nans_do_not_differ() -> None:
    a = np.array([np.inf, np.nan, -np.inf, 1.0, np.nan], np.float32)
    b = np.array([np.inf, np.nan, np.inf, 1.5, 0.0], np.float32)
    gap = difference(a, b)
    assert gap[:2].tolist() == [0, 0]
    assert gap[2] == -np.inf
    assert gap[3] == -0.5
    assert np.isnan(gap[4])


@given(
    st.floats(width=32, allow_nan=False, allow_infinity=False, max_value=2.0**100, min_value=-(2.0**100)),
    st.integers(0, 9),
)
def test_ulps_count_the_numbers_between(start: float, steps: int) -> None:
    value = np.float32(start)
    moved = value
    for _ in range(steps):
        moved = np.nextafter(moved, np.float32(np.inf))
    assert ulps(np.array([value]), np.array([moved]))[0] == steps


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_ulps_of_neighbours_is_one_across_zero_too(dtype: type) -> None:
    tiny = np.array([1], f"u{np.dtype(dtype).itemsize}").view(dtype)
    assert ulps(tiny, -tiny)[0] == 2
    assert ulps(np.zeros(1, dtype), -np.zeros(1, dtype))[0] == 0


def test_ulps_of_integers_or_unlike_dtypes_mean_nothing() -> None:
    assert np.isnan(ulps(np.array([1]), np.array([2]))[0])
    assert np.isnan(ulps(np.ones(1, np.float32), np.ones(1, np.float64))[0])


def test_a_plane_shows_the_asked_dimensions_in_the_asked_order() -> None:
    array = random.normal(size=(3, 4, 5)).astype(np.float32)
    header, columns = decode(plane(TensorPair(array, None), "target", 2, 0, [0, 2, 0]))
    assert (header["height"], header["width"]) == (5, 3)
    np.testing.assert_allclose(np.reshape(columns["value"], (5, 3)), array[:, 2, :].T)


def test_a_lone_error_shows_in_a_shrunken_plane() -> None:
    a = np.zeros((2000, 3000), np.float32)
    b = a.copy()
    b[1234, 2345] = 7
    header, columns = decode(plane(TensorPair(a, b), "difference", 0, 1, []))
    assert header["height"] <= PLANE
    assert header["width"] <= PLANE
    assert header["full"] == [2000, 3000]
    assert np.count_nonzero(columns["value"]) == 1
    assert min(columns["value"]) == -7


@pytest.mark.parametrize("shape", [(), (1,), (7,), (5000,), (1, 1), (4, 0)])
def test_tensors_of_few_dimensions_have_a_picture_or_none_at_all(shape: tuple[int, ...]) -> None:
    array = np.ones(shape, np.float32)
    if array.size:
        header, columns = decode(plane(TensorPair(array, array), "difference", 0, 1, []))
        assert header["height"] * header["width"] == len(columns["value"]) > 0
    assert worst(TensorPair(array, array)) == []


def test_the_worst_elements_come_first_and_nan_before_all() -> None:
    a = random.normal(size=(8, 9)).astype(np.float32)
    b = a.copy()
    b[2, 3] += 1
    b[4, 5] += 2
    b[0, 1] = np.nan
    found = worst(TensorPair(a, b), 10)
    assert [item["index"] for item in found] == [[0, 1], [4, 5], [2, 3]]
    assert found[1]["difference"] == pytest.approx(-2, rel=1e-5)
    assert found[1]["ulp"] > 1


def test_elements_of_a_scalar_have_an_empty_index() -> None:
    assert elements(TensorPair(np.float32(3).reshape(()), None), np.array([0])) == [
        {"index": [], "flat": 0, "target": 3.0}
    ]


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_histogram_counts_every_finite_element_once(scale: str) -> None:
    a = random.normal(size=1000).astype(np.float32)
    a[:3] = [np.nan, np.inf, 0]
    made = histogram(TensorPair(a, a), scale)
    assert len(made["value"]["edges"]) == BINS + 1
    assert sum(made["value"]["target"]) == (997 if scale == "log" else 998)
    assert made["difference"]["equal"] == 1000


def test_arrays_of_unlike_shapes_are_shown_apart() -> None:
    pair = TensorPair(np.ones((2, 3)), np.ones((3, 2)))
    assert not pair.comparable
    assert histogram(pair, "linear")["difference"] is None
    with pytest.raises(SettingsError):
        plane(pair, "difference", 0, 1, [])
    with pytest.raises(SettingsError):
        histogram(pair, "cubic")
