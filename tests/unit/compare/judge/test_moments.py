"""Errors average out, faults do not: a call that moves a norm as none of its siblings does is no rounding."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from numscope.compare.judge.reasons import StandsOut
from numscope.compare.judge.rounding.moments import STANDS_OUT, StandOut
from tests.unit.compare.judge.tables import data, facts_of, judged
from tests.unit.compare.scripted import Script, numbers

SHAPE = (64, 128)
ERROR = 1e-3  # as bfloat16 leaves it


def layers(scale: float = 1.0, wrong: int = -1, count: int = 4, error: float = ERROR, seed: int = 0) -> Script:
    """Return calls of one operator, each given the one before's output with an error of no direction."""
    random = np.random.default_rng(1000 + seed)  # numbers() draws by the small ones

    def rounded(array: np.ndarray) -> np.ndarray:
        return (array * (1.0 + error * random.standard_normal(SHAPE))).astype(ml_dtypes.bfloat16)

    given = numbers(SHAPE).astype(ml_dtypes.bfloat16)
    script = data(Script(), given)
    for layer in range(count):
        exact = numbers(SHAPE, seed=layer + 1)
        made = rounded(exact * (scale if layer == wrong else 1.0))
        script.call(f"Functional.gelu.{layer}.forward", {"input.0": given}, {"output.0": made})
        given = made
    return script


def standing_out(target: Script, reference: Script, other_arguments: bool = False) -> list[StandOut]:
    facts = facts_of(target, reference)
    found = (facts.moments.across(facts.made(pair), other_arguments) for pair in range(len(facts.alignment.target)))
    return [one for one in found if one is not None]


def test_a_systematic_change_far_below_the_error_stands_out() -> None:
    (one,) = standing_out(layers(1.0 + 1e-3, wrong=2, seed=1), layers(seed=2))
    assert one.norm == pytest.approx(1e-3, rel=0.2)
    assert one.siblings == 3
    assert one.times > STANDS_OUT
    assert one.sentence().startswith("its norm changes by +1.")
    assert "what its 3 siblings do" in one.sentence()


@pytest.mark.parametrize("seed", range(20))
def test_errors_of_no_direction_do_not(seed: int) -> None:
    assert not standing_out(layers(seed=2 * seed), layers(seed=2 * seed + 1))


def test_a_change_that_all_siblings_share_does_not() -> None:
    assert not standing_out(layers(1.0 + 2e-4, wrong=2, seed=1), layers(seed=2))
    target, reference = layers(count=1, scale=1.01, wrong=0, seed=1), layers(count=1, seed=2)
    assert not standing_out(target, reference)  # no siblings to ask
    assert standing_out(target, reference, other_arguments=True)  # but another argument is evidence


def test_the_error_of_its_own_fault_does_not_excuse_a_call() -> None:
    (one,) = standing_out(layers(1.0 + 2e-2, wrong=2, seed=1), layers(seed=2))
    assert one.times > 50


def test_the_call_is_the_origin_though_its_error_would_pass_as_rounding() -> None:
    result = judged(layers(1.0 + 1e-3, wrong=3, seed=1), layers(seed=2))
    assert result.named() == "Functional.gelu.3.forward"
    assert isinstance(result.findings[0].reason, StandsOut)
    assert result.findings[0].relative < result.findings[0].expected
    assert not judged(layers(seed=1), layers(seed=2)).findings


def test_a_part_of_a_tensor_has_moments_of_its_own() -> None:
    def halves(seed: int) -> Script:
        random = np.random.default_rng(seed)
        script = data(Script(), numbers(SHAPE))
        for layer in range(4):
            whole = numbers(SHAPE, seed=layer + 1)
            if layer == 2:
                whole = whole * np.where(np.arange(128) < 64, 1.0 + 2e-3 * random.random(), 1.0)
            whole = (whole * (1.0 + ERROR * random.standard_normal(SHAPE))).astype(ml_dtypes.bfloat16)
            script.call(f"Tensor.chunk.{layer}.forward", {"input.0": whole}, {"output.0": whole[:, :64].copy()})
        return script

    assert not standing_out(halves(1), halves(2))
