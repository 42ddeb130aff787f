"""The definition itself: what the hash sees, what the sketch estimates, what is counted."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numscope.fingerprint import constants
from numscope.fingerprint.definition import fingerprint, hash64, sketch

DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.int64, ml_dtypes.float8_e4m3fn)
seeds = st.integers(0, 2**32 - 1)


def test_constants_never_change() -> None:
    content = np.arange(200_000, dtype=np.float32)
    assert hash64(content) == 1554915177675996544
    assert sketch(content)[:3].tolist() == [14950917.0, 3324376.0, 5402567.0]


def test_factors_are_odd_and_differ_in_their_low_33_bits() -> None:
    factors = constants.factors().view(np.uint64)
    assert (factors & np.uint64(1)).all()
    assert len(np.unique(factors & np.uint64(2**33 - 1))) == constants.SPAN


def test_both_forms_of_the_generator_agree() -> None:
    many = constants.splitmix_array(7, np.arange(100))
    assert many.tolist() == [constants.splitmix(7, k) for k in range(100)]
    assert constants.splitmix(0, 0) == 0xE220A8397B1DCDAF  # the first output of splitmix64 from 0, as published


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 5000), st.sampled_from(DTYPES), st.data())
def test_one_flipped_bit_changes_the_hash(seed: int, count: int, dtype: type, data: st.DataObject) -> None:
    raw = np.random.default_rng(seed).integers(0, 256, count * np.dtype(dtype).itemsize).astype(np.uint8)
    before = hash64(raw.view(dtype))
    bit = data.draw(st.integers(0, raw.size * 8 - 1))
    raw[bit // 8] ^= np.uint8(1 << (bit % 8))
    assert hash64(raw.view(dtype)) != before


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(2, 50_000), st.sampled_from(DTYPES), st.data())
def test_two_swapped_elements_change_the_hash(seed: int, count: int, dtype: type, data: st.DataObject) -> None:
    array = np.random.default_rng(seed).integers(0, 256, count * np.dtype(dtype).itemsize).astype(np.uint8).view(dtype)
    one, other = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True))
    swapped = array.copy()
    swapped[one], swapped[other] = array[other], array[one]
    if swapped.tobytes() != array.tobytes():
        assert hash64(swapped) != hash64(array)


def test_swaps_of_elements_that_differ_in_sign_alone_are_seen() -> None:
    rng = np.random.default_rng(0)
    array = rng.choice(np.array([-1.0, 1.0], np.float32), 40_000)
    before = hash64(array)
    for _ in range(300):
        one, other = rng.integers(0, array.size, 2)
        if array[one] != array[other]:
            array[one], array[other] = array[other], array[one]
            assert hash64(array) != before
            before = hash64(array)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("count", [1, 2, 61, 20_000])
def test_the_sign_of_zeros_changes_the_hash(dtype: type, count: int) -> None:
    zeros = np.zeros(count, dtype)
    one = zeros.copy()
    one[-1] = -0.0
    assert len({hash64(zeros), hash64(one), hash64(-zeros)}) == (3 if count > 1 else 2)


def test_the_hash_of_many_similar_arrays_does_not_collide() -> None:
    seen = set()
    for position in range(3000):
        array = np.zeros(3000, np.float32)
        array[position] = 1.0
        seen.add(hash64(array))
        array[position] = -1.0
        seen.add(hash64(array))
    assert len(seen) == 6000


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 3000), st.integers(0, 200_000))
def test_the_sketch_is_linear(seed: int, count: int, offset: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = rng.standard_normal(count), rng.standard_normal(count)
    both = sketch(2.0 * one - 3.0 * other, offset)
    assert np.allclose(both, 2.0 * sketch(one, offset) - 3.0 * sketch(other, offset), atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(seeds, st.lists(st.integers(0, 90_000), min_size=1, max_size=4))
def test_sketches_of_parts_with_global_offsets_add_up(seed: int, sizes: list[int]) -> None:
    whole = np.random.default_rng(seed).standard_normal(sum(sizes)).astype(np.float32)
    ends = np.cumsum(sizes)
    parts = [sketch(whole[end - size : end], end - size) for size, end in zip(sizes, ends)]
    assert np.allclose(sum(parts), sketch(whole), atol=1e-8)


def test_sketches_of_shards_along_any_dimension_add_up() -> None:
    whole = np.random.default_rng(1).standard_normal((12, 40, 300)).astype(np.complex64)
    index = np.arange(whole.size).reshape(whole.shape)
    for axis in range(3):
        shards = zip(np.array_split(whole, 4, axis), np.array_split(index, 4, axis))
        assert np.allclose(sum(sketch(part, indices=at) for part, at in shards), sketch(whole), atol=1e-8)


def test_indices_must_fit_the_array() -> None:
    with pytest.raises(ValueError, match="4 elements, but 3 indices"):
        sketch(np.zeros(4), indices=np.arange(3))


def _differences(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    rows, columns = shape
    change = np.zeros(shape)
    if kind == "dense":
        change = rng.standard_normal(shape)
    elif kind == "sparse":
        change.reshape(-1)[rng.choice(change.size, max(1, change.size // 1000), replace=False)] = 1.0
    elif kind == "one element":
        change[rng.integers(rows), rng.integers(columns)] = 1.0
    elif kind == "constant":
        change[:] = 1.0
    elif kind == "column":
        change[:, rng.integers(columns)] = 1.0
    elif kind == "row":
        change[rng.integers(rows)] = 1.0
    elif kind == "bias":
        change[:] = rng.standard_normal(columns)
    elif kind == "half":
        change[: rows // 2] = rng.standard_normal((rows // 2, columns))
    return change


KINDS = ("dense", "sparse", "one element", "constant", "column", "row", "bias", "half")


@pytest.mark.parametrize("shape", [(256, 64), (64, 768), (96, 1024), (150, 4096)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e-1, 1e-3, 1e-6])
def test_the_sketch_estimates_relative_l2_within_40_percent(shape: tuple[int, int], kind: str, size: float) -> None:
    rng = np.random.default_rng([*shape, KINDS.index(kind), int(-math.log10(size))])
    reference = rng.standard_normal(shape)
    change = _differences(kind, shape, rng)
    target = reference + change * (size * np.linalg.norm(reference) / np.linalg.norm(change))
    truth = np.linalg.norm(target - reference) / np.linalg.norm(reference)
    estimate = np.linalg.norm(sketch(target) - sketch(reference)) / np.linalg.norm(reference)
    assert abs(estimate / truth - 1) < 0.4


def test_non_finite_elements_are_counted_and_left_out() -> None:
    array = np.array([np.nan, np.inf, -np.inf, -np.inf, 3.0, 0.0, -0.0, -4.0], np.float32)
    one = fingerprint(array)
    assert (one.elements[0], one.nan[0], one.posinf[0], one.neginf[0], one.zero[0]) == (8, 1, 1, 2, 2)
    assert (one.min[0], one.max[0], one.mean[0], one.l2[0]) == (-4.0, 3.0, -0.25, 5.0)
    finite = np.where(np.isfinite(array), array, 0)
    assert (one.sketch[0] == sketch(finite)).all()


@pytest.mark.parametrize("array", [np.zeros(0, np.float32), np.full(3, np.nan, np.float32)])
def test_without_a_finite_element_min_max_and_mean_are_nan_and_l2_is_0(array: np.ndarray) -> None:
    one = fingerprint(array)
    assert np.isnan([one.min[0], one.max[0], one.mean[0]]).all()
    assert one.l2[0] == 0
    assert not one.sketch.any()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("which", ["max", "smallest_subnormal"])
def test_l2_neither_overflows_nor_underflows(dtype: type, which: str) -> None:
    edge = float(getattr(ml_dtypes.finfo(dtype), which))
    one = fingerprint(np.full(10_000, edge, dtype))
    # float64 has no room beyond its own largest number
    expected = math.inf if dtype is np.float64 and which == "max" else edge * 100
    assert one.l2[0] == pytest.approx(expected, rel=1e-12)
    assert one.mean[0] == pytest.approx(edge, rel=1e-12)


@pytest.mark.parametrize("dtype", ["U3", "O", "datetime64[s]", "V8", np.longdouble, [("a", "f4")]])
def test_arrays_that_are_no_numbers_are_refused(dtype: object) -> None:
    with pytest.raises(TypeError, match="no fingerprint is defined"):
        fingerprint(np.zeros(2, dtype))


def test_byte_order_does_not_matter() -> None:
    array = np.arange(100, dtype="<f4")
    assert hash64(array) == hash64(array.astype(">f4"))
