"""The rules of rounding on calls written by hand; each test has the sentence of docs/explanation/rounding.md that it shows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from numscope.compare.judge.rounding.limits import (
    BACKWARD,
    FORWARD,
    MOST_CANCELLATION,
    MOST_NARROW_FLOOR,
    SIGN_LIKE,
    Bound,
    Norms,
    bounds,
    common_roundoff,
    error_of_coarser,
)
from numscope.core.dtypes import SINGLE, unit_roundoff
from numscope.core.operators import Rounding

BF16, DOUBLE = unit_roundoff("bfloat16"), unit_roundoff("float64")
DEFAULTS = {
    "roundoff": SINGLE,
    "averages": False,
    "own": 4.0,
    **dict.fromkeys(("out", "largest_in"), 1.0),
    **dict.fromkeys(("off_elements", "out_elements", "in_elements"), 64.0),
    **dict.fromkeys(("log_product", "log_elements", "forward_in", "forward_out"), 0.0),
    "deviation": 0.125,
}


SUMMING = (Rounding.PRODUCT, Rounding.SUM, Rounding.CHANNELWISE, Rounding.FOURIER)


def norms(*calls: dict[str, float]) -> Norms:
    """Return the norms of calls that are all of norm 1 and of 64 elements, unless they say something else."""
    rows = [{**DEFAULTS, **call} for call in calls or ({},)]
    return Norms(**{name: np.array([row[name] for row in rows]) for name in DEFAULTS})


def of(kind: Rounding, *, backward: bool = False, sign_like: bool = False, **call: float) -> tuple[float, float, float]:
    """Return floor and gains of one call."""
    bound = bounds(np.array([kind]), np.array([backward]), np.array([sign_like]), norms(call))
    return bound.floor.item(), bound.absolute.item(), bound.relative.item()


def shown(kind: Rounding, inputs: list[NDArray[np.float32]], out: NDArray[np.float32]) -> float:
    """Return the floor, relative to the result, of a call of float32 that was given and made these."""
    call = {
        "out": float(np.linalg.norm(out)),
        "out_elements": out.size,
        "off_elements": out.size,
        "largest_in": max(float(np.linalg.norm(x)) for x in inputs),
        "in_elements": max(x.size for x in inputs),
        "log_product": sum(float(np.log(np.linalg.norm(x))) for x in inputs),
        "log_elements": sum(float(np.log(x.size)) for x in inputs),
    }
    return of(kind, **call)[0] * SINGLE


def random(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def test_shares_and_gates_are_at_most_one() -> None:
    """| attention, recurrent layers | c u | shares and gates are at most 1, so that no product of norms counts |"""
    assert of(Rounding.GATED, log_product=20.0)[0] == of(Rounding.GATED)[0] == 4.0
    assert of(Rounding.GATED, log_product=20.0, backward=True)[0] == 4.0
    assert of(Rounding.GATED, largest_in=10.0, backward=True)[0] == 40.0


@pytest.mark.parametrize("kind", [kind for kind in Rounding if kind not in SUMMING])
def test_a_call_of_norm_one_shows_what_the_operator_is_off_and_the_gains_of_its_class(kind: Rounding) -> None:
    gains = FORWARD[kind]
    assert of(kind) == (4.0, gains.absolute, max(gains.relative, 2.5 * (kind is Rounding.EXPONENTIAL)))
    assert of(kind, roundoff=BF16, own=0.5)[0] == 0.5


def test_every_class_has_gains() -> None:
    assert set(FORWARD) == set(Rounding)


def test_what_moves_elements_rounds_nothing() -> None:
    """Nothing is rounded: equal inputs give equal bits."""
    assert of(Rounding.MOVE, own=0.0) == (0.0, 4.0, 2.0)
    assert of(Rounding.MOVE, roundoff=BF16, out=1e-9, own=0.0)[0] == 0.0


def test_a_product_of_random_numbers_rounds_by_the_root_of_its_depth() -> None:
    """For random data the last factor is 1."""
    a, b = random(64, 256), random(256, 32, seed=1)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    explained = shown(Rounding.PRODUCT, [a, b], a @ b)
    assert explained == pytest.approx((4 + 256**0.5 / 4) * SINGLE, rel=0.05)
    assert np.linalg.norm(a @ b - exact) / np.linalg.norm(exact) < explained


def test_a_product_that_cancels_is_off_by_more() -> None:
    """The last factors in the table say how much larger the terms are than the result."""
    usual = {"log_product": np.log(8.0) / 2, "log_elements": 2 * np.log(64.0)}  # [8, 8] times [8, 8], ‖A‖‖B‖ = √8·‖AB‖
    floor, _, gain = of(Rounding.PRODUCT, **usual)
    assert floor == pytest.approx(4 + 8**0.5 / 4)
    less, _, more = of(Rounding.PRODUCT, **usual, out=1e-3)
    assert less == pytest.approx(floor * 1e3)
    assert more == pytest.approx(gain * 1e3)
    assert of(Rounding.PRODUCT, out=0.0)[2] == 8 * MOST_CANCELLATION


def test_a_narrow_product_accumulates_in_float32() -> None:
    """Below float32 the depth K does not count, because kernels accumulate in float32."""
    deep = {"log_product": np.log(4096.0), "log_elements": 3 * np.log(4096.0), "in_elements": 4096.0**2, "out": 64.0}
    assert of(Rounding.PRODUCT, **deep)[0] > 8
    assert of(Rounding.PRODUCT, roundoff=BF16, **deep)[0] == 4


def test_a_fourier_transform_rounds_by_its_stages() -> None:
    """Each of its log₂ n stages keeps the norm, and rounds once."""
    assert of(Rounding.FOURIER, own=1.0, in_elements=2.0**16) == (4.0, 0.0, 2.0)
    x = random(4, 4096)
    off = np.linalg.norm(_transformed(x) - np.fft.fft(x.astype(np.float64))) / np.linalg.norm(np.fft.fft(x))
    assert off < of(Rounding.FOURIER, own=1.0, in_elements=x.size)[0] * SINGLE


def _transformed(x: NDArray[np.float32]) -> NDArray[np.complex64]:
    """Return a transform by stages of complex64: numpy's own may compute in float64."""
    n = x.shape[-1]
    if n == 1:
        return x.astype(np.complex64)
    even, odd = _transformed(x[:, ::2]), _transformed(x[:, 1::2])
    turned = (np.exp(-2j * np.pi * np.arange(n // 2) / n).astype(np.complex64) * odd).astype(np.complex64)
    return np.concatenate([even + turned, even - turned], axis=-1)


def test_a_sum_rounds_in_proportion_to_its_terms() -> None:
    """A sum rounds in proportion to its terms, not to its result."""
    x = random(64, 256)
    explained = shown(Rounding.SUM, [x], x.sum(1))
    off = np.linalg.norm(x.sum(1) - x.astype(np.float64).sum(1)) / np.linalg.norm(x.sum(1))
    assert explained == pytest.approx((4 + 256**0.5 / 4) * SINGLE, rel=0.05)
    assert off < explained
    x -= x.mean(1, keepdims=True)
    assert shown(Rounding.SUM, [x], x.sum(1)) > 0.1  # nothing but rounding is left


def test_a_mean_is_a_sum_over_the_number_of_its_terms() -> None:
    total = of(Rounding.SUM, in_elements=6400.0, out=1.0, largest_in=10.0)
    mean = of(Rounding.SUM, in_elements=6400.0, out=0.01, largest_in=10.0, averages=True)
    assert mean == total


def test_a_normalisation_cancels_where_the_mean_is_large_against_the_deviation() -> None:
    """Subtracting a mean cancels where it is large against the deviation σ."""
    assert of(Rounding.NORMALISE, largest_in=8.0, deviation=1.0)[0] == 4  # ‖x‖ is √n·σ: no mean to speak of
    assert of(Rounding.NORMALISE, largest_in=800.0, deviation=1.0) == (400.0, 0.0, 1600.0)
    assert of(Rounding.NORMALISE, largest_in=800.0, deviation=1.0, roundoff=BF16, own=1.0)[0] == 100


def test_statistics_of_images_cancel_by_their_squares() -> None:
    """| batch, group, instance norm | c (1 + √n/16) u · (‖x‖ / (√n σ))² | a variance in one pass cancels by its square |"""
    assert of(Rounding.CHANNELWISE, largest_in=8.0, deviation=1.0)[0] == 4 * (1 + 8 / 16)
    assert of(Rounding.CHANNELWISE, largest_in=80.0, deviation=1.0)[0] == pytest.approx(400 * (1 + 8 / 16))


def test_the_mean_that_a_normalisation_returns_is_a_sum() -> None:
    """The normalisation's own mean, which operators return at level `aten`, is a sum and may cancel to nothing."""
    whole = of(Rounding.NORMALISE, largest_in=8.0, deviation=1.0, out=8.0, off_elements=64.0)
    mean = of(Rounding.NORMALISE, largest_in=8.0, deviation=1.0, out=1e-4, off_elements=8.0)
    assert mean[0] == pytest.approx(whole[0] * 8.0 / (1e-4 * 8))


def test_an_error_of_logits_comes_out_times_their_size() -> None:
    """| softmax, exp, cross-entropy | relative error | 20 · rms of the logits, at least 16 |"""
    assert of(Rounding.EXPONENTIAL, largest_in=8.0) == (4.0, 0.0, 20.0)
    assert of(Rounding.EXPONENTIAL, largest_in=0.8)[2] == 16
    assert of(Rounding.EXPONENTIAL, largest_in=80.0)[2] == 200


def test_an_elementwise_product_carries_no_more_than_32_times_its_constant() -> None:
    """| elementwise product | relative error | 8 · cancellation, at most 256 |"""
    assert of(Rounding.SCALE, log_product=np.log(3.0))[2] == pytest.approx(24)
    assert of(Rounding.SCALE, log_product=np.log(3e6))[2] == 256


def test_what_divides_each_element_by_its_own_size_carries_anything() -> None:
    """With any error in what it is given, everything is explained."""
    assert of(Rounding.STEEP)[2] == 48
    assert of(Rounding.STEEP, sign_like=True)[2] == SIGN_LIKE
    assert of(Rounding.STEEP, sign_like=True, backward=True)[2] == BACKWARD.relative


def test_backward_rounds_by_several_products_and_sums() -> None:
    """| backward of any other call | c (1 + √n/64) u · cancellation | several products and sums |"""
    for kind in (Rounding.PRODUCT, Rounding.LIPSCHITZ, Rounding.OTHER):
        assert of(kind, backward=True) == (4.5, 4.0, 24.0)
        assert of(kind, backward=True, roundoff=BF16)[0] == 4


def test_a_gradient_that_cancels_may_be_off_by_all_of_itself() -> None:
    """In self-attention the gradient of the key's bias is zero in exact arithmetic."""
    floor, _, gain = of(Rounding.SUM, backward=True, out=1e-9)
    assert floor * SINGLE > 0.2  # of its terms it is a billionth
    assert gain == 24 * MOST_CANCELLATION


def test_a_gradient_grows_by_the_slope_of_its_forward_call() -> None:
    steep = of(Rounding.STEEP, backward=True, forward_in=1.0, forward_out=10.0, log_product=-9.0)
    flat = of(Rounding.STEEP, backward=True, forward_in=1.0, forward_out=0.1, log_product=-9.0)
    assert steep[0] == 10 * flat[0] == 45


def test_a_gradient_sums_products_with_what_the_forward_call_was_given() -> None:
    alone = of(Rounding.PRODUCT, backward=True)
    summed = of(Rounding.PRODUCT, backward=True, forward_in=80.0, forward_out=80.0)
    assert summed[0] == pytest.approx(alone[0] * 80 / 8)  # ‖g‖‖x‖ / (√n ‖out‖)


def test_the_gradient_of_a_gather_is_a_sum() -> None:
    """| backward of a moving call | c u | the gradient of a gather is a sum |"""
    assert of(Rounding.MOVE, backward=True) == (4.0, 4.0, 2.0)
    assert of(Rounding.MOVE, backward=True, roundoff=BF16, out=1e-9) == (4.0, 4.0, 2.0)


def test_no_forward_floor_of_a_narrow_format_explains_everything() -> None:
    """Below float32 the depth K does not count, because kernels accumulate in float32, and no forward floor exceeds 256 u."""
    assert of(Rounding.SUM, roundoff=BF16, out=1e-6)[0] == MOST_NARROW_FLOOR
    assert of(Rounding.SUM, roundoff=BF16, out=1e-6, backward=True)[0] > MOST_NARROW_FLOOR
    assert of(Rounding.SUM, out=1e-6)[0] > MOST_NARROW_FLOOR


def test_calls_are_judged_each_by_itself() -> None:
    kinds = list(Rounding) * 2
    backward = np.arange(len(kinds)) >= len(Rounding)
    calls = [{"out": 0.5 + number, "largest_in": 3.0, "log_product": 1.0} for number in range(len(kinds))]
    together = bounds(np.array(kinds), backward, np.zeros(len(kinds), np.bool_), norms(*calls))
    for number, (kind, behind, call) in enumerate(zip(kinds, backward.tolist(), calls)):
        assert of(kind, backward=behind, **call) == tuple(column[number] for column in together)
    assert isinstance(together, Bound)


def test_nothing_is_explained_of_no_calls() -> None:
    none = Norms(**{name: np.zeros(0, np.bool_ if name == "averages" else np.float64) for name in DEFAULTS})
    assert bounds(np.zeros(0, np.int64), np.zeros(0, np.bool_), np.zeros(0, np.bool_), none).floor.shape == (0,)


def test_one_precision_is_held_to_the_finer_side() -> None:
    """Where a call computes in bfloat16 and its counterpart in float32, it is held to float32."""
    assert common_roundoff([BF16, SINGLE], coarser=False) == SINGLE


def test_two_precisions_are_held_to_the_coarser_side() -> None:
    """If more than 30 % of the products, or of the parameters, differ in dtype, the runs are of two precisions, and u is that
    of the coarser one."""
    assert common_roundoff([BF16, SINGLE], coarser=True) == BF16


def test_double_precision_is_never_held_against_float32() -> None:
    """float64 on one side is never held against float32 on the other."""
    assert common_roundoff([DOUBLE, SINGLE], coarser=False) == SINGLE
    assert common_roundoff([DOUBLE, DOUBLE], coarser=False) == DOUBLE
    assert common_roundoff([0.0, SINGLE], coarser=False) == 0.0  # an integer is exact


@pytest.mark.parametrize("error", [1e-7, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("count", [64, 4096])
def test_a_cast_to_a_coarser_dtype_makes_the_root_of_an_error(error: float, count: int) -> None:
    import ml_dtypes

    random = np.random.default_rng(0)
    for _ in range(50):
        x = random.standard_normal(count)
        moved = x + error * random.standard_normal(count)
        peak = float(np.abs(x).max() * np.sqrt(count) / np.linalg.norm(x))
        a, b = (one.astype(ml_dtypes.bfloat16).astype(np.float64) for one in (x, moved))
        came_in, came_out = (np.linalg.norm(p - q) / np.linalg.norm(p) for p, q in ((x, moved), (a, b)))
        granted = error_of_coarser(*(np.array([one]) for one in (BF16, came_in, float(count), peak))).item()
        assert came_out <= granted
        if count * error > 32 * BF16:  # of fewer flips than 16 each is a large part
            assert granted < 8 * came_out


def test_what_is_not_coarser_makes_nothing_of_an_error() -> None:
    roundoff, came_in, ones = np.array([0.0, BF16]), np.array([1e-3, 0.0]), np.ones(2)
    assert error_of_coarser(roundoff, came_in, ones, ones).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("rows", [48, 512, 4096])
def test_the_gradient_of_a_narrow_norms_weight_rounds_at_each_row(rows: int) -> None:
    import torch

    generator = torch.Generator().manual_seed(0)
    x, g = (torch.randn(rows, 64, generator=generator).bfloat16() for _ in range(2))
    made = []
    for wide in (False, True):
        weight = torch.ones(64, dtype=torch.float64 if wide else torch.bfloat16, requires_grad=True)
        given, gradient = (one.to(weight.dtype) for one in (x, g))
        torch.nn.functional.layer_norm(given, (64,), weight).backward(gradient)
        assert weight.grad is not None
        made.append(weight.grad.double())
    error = float((made[0] - made[1]).norm() / made[1].norm()) / BF16
    call = {"roundoff": BF16, "in_elements": 64.0 * rows, "off_elements": 64.0, "own": 1.0}
    floor, *_ = of(Rounding.NORMALISE, backward=True, **call)
    assert error < floor < 8 * error
