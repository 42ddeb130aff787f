"""Exact measures of the dtypes that are read through their bits, against plain float64, over chunks and special values."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numscope.compare.measure import exact
from numscope.compare.measure.exact import Exact, measure_arrays

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float64": np.float64}
TOLERANCE = {"float32": (1.3e-6, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float16": (1e-3, 1e-5), "float64": (1e-7, 1e-7)}

pytestmark = pytest.mark.usefixtures("both_forms")


def measured(a: Any, b: Any) -> Exact:
    return measure_arrays(a, b, (a.dtype.name, b.dtype.name))


def as_bits(x: Any) -> Any:
    """Integers in the order of the values; both zeros are 0."""
    bits = x.view(f"i{x.dtype.itemsize}").astype(object)
    lowest = -(2 ** (8 * x.dtype.itemsize - 1))
    return np.array([lowest - value if value < 0 else value for value in bits.tolist()], dtype=object)


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "CHUNK", 3000)


@st.composite
def two_arrays(draw: Any) -> tuple[Any, Any]:
    """A tensor and a version of it that is perturbed, with zeros, in one of the dtypes, at any scale."""
    name = draw(st.sampled_from(sorted(DTYPES)))
    size = draw(st.integers(1, 9000))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = 10.0 ** draw(st.integers(-3, 1) if name == "float16" else st.integers(-25, 15))
    b = random.standard_normal(size) * scale
    b[random.random(size) < draw(st.sampled_from([0.0, 0.0, 0.5, 1.0]))] = 0
    b += draw(st.sampled_from([0.0, 0.0, 100.0])) * scale
    a = b * (1 + 10.0 ** draw(st.integers(-4, 0)) * random.standard_normal(size))
    a[random.random(size) < draw(st.sampled_from([0.0, 0.01]))] += scale
    a[random.random(size) < draw(st.sampled_from([0.0, 0.9]))] = 0
    return a.astype(DTYPES[name]), b.astype(DTYPES[name])


@settings(deadline=None, max_examples=100)
@given(two_arrays())
def test_every_measure_is_that_of_float64(both: tuple[Any, Any]) -> None:
    check(*both)


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("name", sorted(DTYPES))
@pytest.mark.parametrize("seed", range(6))
def test_chunks_do_not_show_in_any_dtype(name: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    b = random.standard_normal(10_007)
    b[:4000] = np.maximum(b[:4000], 0) * (seed % 2)
    a = b * (1 + 1e-3 * random.standard_normal(len(b)))
    a[3000:6000] = b[3000:6000]
    check(a.astype(DTYPES[name]), b.astype(DTYPES[name]))


def check(a: Any, b: Any) -> None:
    found = measured(a, b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    d = x - y
    norm_x, norm_y, norm_d = (math.sqrt(math.fsum(v * v)) for v in (x, y, d))
    assert found.euclid == pytest.approx(norm_d, rel=2e-6)
    assert found.rmse == pytest.approx(norm_d / math.sqrt(len(d)), rel=2e-6)
    assert found.max_abs_err == pytest.approx(np.abs(d).max(), rel=1e-6)
    if norm_y > 0:
        assert found.relative_l2 == pytest.approx(norm_d / norm_y, rel=4e-6)
    if norm_x > 0 and norm_y > 0:
        assert found.cosine == pytest.approx(math.fsum(x * y) / norm_x / norm_y, abs=2e-6)
    if norm_d > 0:
        assert found.bias == pytest.approx(math.fsum(d) / math.sqrt(len(d)) / norm_d, abs=2e-6)
    # A mean of squares less the square of a mean, of n terms in float64: off by up to n·2⁻⁵¹ of them, before the root.
    cancelled = math.sqrt(len(d) * 2.0**-51)
    assert found.target_std == pytest.approx(x.std(), rel=2e-5, abs=cancelled * np.abs(x).max())
    assert found.reference_std == pytest.approx(y.std(), rel=2e-5, abs=cancelled * np.abs(y).max())
    there = y != 0
    assert found.mape_excluded == (~there).sum()
    relative = np.abs(d[there]) / np.abs(y[there])
    if there.any():
        assert found.mape == pytest.approx(relative.mean(), rel=1e-5, abs=1e-30)
    wrong_zeros = bool((d[~there] != 0).any())
    assert found.max_rel_err == (math.inf if wrong_zeros else pytest.approx(relative.max(initial=0), rel=1e-6))
    for share, limit in ((found.within_0_1_percent, 1e-3), (found.within_0_5_percent, 5e-3)):
        edge = np.count_nonzero(np.abs(relative / limit - 1) < 1e-5)
        near = np.count_nonzero(relative <= limit) + np.count_nonzero(d[~there] == 0)
        assert share == pytest.approx(near / len(d), abs=(edge + 0.5) / len(d))
    rtol, atol = TOLERANCE[a.dtype.name]
    beyond = np.abs(d) / (atol + rtol * np.abs(y))
    edge = np.count_nonzero(np.abs(beyond - 1) < 1e-5)
    assert found.mismatch_share == pytest.approx(np.count_nonzero(beyond > 1) / len(d), abs=(edge + 0.5) / len(d))
    assert found.ulp_max == pytest.approx(float(max(abs(as_bits(a) - as_bits(b)))), rel=1e-15, abs=0)
    different = np.flatnonzero(d)
    assert found.first_index == (f"[{different[0]}]" if len(different) else None)
    worst = np.flatnonzero(np.abs(d) >= np.abs(d).max() * (1 - 1e-6)).tolist()
    assert found.worst_index in ([f"[{place}]" for place in worst] if len(different) else [None])


special = st.sampled_from([0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00])
special |= st.sampled_from([0x7E00, 0xFE01, 0x0080, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0x3C00, 0x3F80])
any_bits = st.lists(
    st.tuples(special | st.integers(0, 0xFFFF), special | st.integers(0, 0xFFFF)), min_size=1, max_size=40
)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@settings(deadline=None, max_examples=300)
@given(any_bits)
def test_subnormals_zeros_infinities_and_nan_are_measured_as_what_they_are(name: str, bits: Any) -> None:
    a, b = (np.array(side, np.uint16).view(DTYPES[name]) for side in zip(*bits))
    check_any(a, b)
    check_any(a, np.where(np.arange(len(b)) % 3 == 0, b, a))


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("share", [0.0, 1e-3, 0.3])
def test_special_values_are_left_out_in_any_chunk(name: str, share: float) -> None:
    random = np.random.default_rng(0)
    b = np.maximum(random.standard_normal(10_007), 0) * 100
    a = b + 1e-2 * random.standard_normal(len(b))
    for value in (np.inf, -np.inf, np.nan):
        where = random.random(len(b)) < share
        a[where] = b[where] = value
    check_any(a.astype(DTYPES[name]), b.astype(DTYPES[name]))


def check_any(a: Any, b: Any) -> None:
    """Compare with float64 over the elements that are finite on both sides; others, unless alike, make errors infinite."""
    found = measured(a, b)
    with np.errstate(invalid="ignore"):  # a signalling NaN is an ordinary content
        x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    unlike = ~finite & ~((x == y) | (np.isnan(x) & np.isnan(y)))
    x, y = x[finite], y[finite]
    d = np.abs(x - y)
    infinite = math.inf if unlike.any() else 0.0
    if finite.any() or infinite:
        assert found.euclid == (infinite or pytest.approx(np.linalg.norm(d), rel=2e-6))
        assert found.max_abs_err == (infinite or pytest.approx(d.max(), rel=1e-6))
    wrong, there = bool((d[y == 0] != 0).any()), y != 0
    relative = d[there] / np.abs(y[there])
    if finite.any():
        assert found.target_std == pytest.approx(x.std(), rel=1e-4, abs=1e-7 * np.abs(x).max())
        assert found.max_rel_err == (
            infinite or (math.inf if wrong else pytest.approx(relative.max(initial=0), rel=1e-6))
        )
        near = np.count_nonzero(relative <= 1e-3) + np.count_nonzero(d[~there] == 0)
        edge = np.count_nonzero(np.abs(relative / 1e-3 - 1) < 1e-5)
        assert found.within_0_1_percent == pytest.approx(near / len(d), abs=(edge + 0.5) / len(d))
        furthest = max(np.abs(as_bits(a[finite]) - as_bits(b[finite])))
        assert found.ulp_max == float(furthest)
    assert found.mape_excluded == np.count_nonzero(~there)
    if there.any():
        assert found.mape == (infinite or pytest.approx(relative.mean(), rel=1e-5, abs=1e-45))
    rtol, atol = TOLERANCE[a.dtype.name]
    beyond = d / (atol + rtol * np.abs(y))
    edge = np.count_nonzero(np.abs(beyond - 1) < 1e-5)
    mismatch = np.count_nonzero(beyond > 1) + np.count_nonzero(unlike)
    assert found.mismatch_share == pytest.approx(mismatch / len(a), abs=(edge + 0.5) / len(a))
    different = unlike.copy()
    different[finite] = d != 0
    assert found.first_index == (f"[{different.argmax()}]" if different.any() else None)


@pytest.mark.parametrize("name", sorted(DTYPES))
@pytest.mark.parametrize("far", [2.0**-12, -(2.0**-12), -1.0])
def test_the_furthest_of_many_far_elements_is_found(name: str, far: float) -> None:
    """The first is in the sample of the quantiles, the others are not; the further one has no larger relative error."""
    b = np.ones(40_000, DTYPES[name])
    a = b.copy()
    a[0], a[5], a[7] = 2.0**-10, far, -far
    assert measured(a, b).ulp_max == float(max(abs(as_bits(a) - as_bits(b))))
    a[20_000:] = far
    assert measured(a, b).ulp_max == float(max(abs(as_bits(a) - as_bits(b))))


def test_every_half_is_read_as_the_number_it_is() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    for values in (finite, finite.astype(ml_dtypes.bfloat16)):
        found = measured(values, np.zeros_like(values))
        assert found.max_abs_err == float(np.abs(values.astype(np.float64)).max())
        assert found.euclid == pytest.approx(float(np.linalg.norm(values.astype(np.float64))), rel=1e-6)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("side", ["target", "reference", "both"])
def test_non_finite_values_are_seen_in_any_dtype(name: str, value: float, side: str) -> None:
    b = np.linspace(1, 2, 5000).astype(DTYPES[name])
    a = b.copy()
    if side != "reference":
        a[17] = value
    if side != "target":
        b[17] = value
    found = measured(a, b)
    assert found.relative_l2 == (0.0 if side == "both" else math.inf)
    assert found.worst_index == (None if side == "both" else "[17]")


def test_large_halves_are_no_infinities() -> None:
    b = np.full(5000, 65504, np.float16)
    a = b.copy()
    a[3] = -65504
    found = measured(a, b)
    assert (found.max_abs_err, found.max_rel_err, found.worst_index) == (131008.0, 2.0, "[3]")


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_small_deviation_beside_a_large_mean_is_seen(name: str) -> None:
    b = (1 + 0.01 * np.random.default_rng(0).standard_normal(40_000)).astype(DTYPES[name])
    found = measured(b, b[::-1].copy())
    assert found.target_std == pytest.approx(b.astype(np.float64).std(), rel=1e-9)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("start", [0, 1, 2], ids=["aligned", "odd", "unaligned"])
def test_wherever_the_contents_lie(name: str, start: int) -> None:
    size = np.dtype(DTYPES[name]).itemsize
    b = np.linspace(1, 2, 5000).astype(DTYPES[name])
    memory = np.zeros(5001 * size + 8, np.uint8)
    place = {0: 0, 1: size, 2: 1}[start]
    a = memory[place : place + 5000 * size].view(DTYPES[name])
    a[:] = b
    a[4321] = 3
    assert (measured(a, b).worst_index, measured(b, a).worst_index) == ("[4321]", "[4321]")


def test_errors_that_float32_does_not_hold() -> None:
    b = np.full(5000, -3e38, np.float32)
    a = b.copy()
    a[7], a[9], b[9] = 3e38, 1e-3, 1e-42
    found = measured(a, b)
    assert found.max_abs_err == pytest.approx(6e38)
    assert found.max_rel_err == pytest.approx(float(a[9]) / float(b[9]), rel=1e-6)
    assert found.worst_index == "[7]"
