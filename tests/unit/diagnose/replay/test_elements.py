"""The elements that are off are told as one would say it: a column, a tile, rows, each 37th, one bit, a factor."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from numscope.diagnose.replay.elements import which

torch.manual_seed(0)
EXACT = torch.randn(4, 16, 24, dtype=torch.float64)


def told(wrong: torch.Tensor) -> str:
    return which(wrong != EXACT.float(), wrong, EXACT)


def off(*index: object, by: float = 1.5) -> torch.Tensor:
    made = EXACT.float().clone()
    made[index] += by  # type: ignore[index]
    return made


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (off(..., 23), "a column [:, :, 23 (the last)]: 64 of 1,536"),
        (off(0, slice(8, 16), slice(8, 16)), "a tile [0, 8:16, 8:16]: 64 of 1,536"),
        (off(2, 5), "a row [2, 5, :]: 24 of 1,536"),
        (off(slice(None), 0), "rows [:, 0, :]: 64 of 1,536"),
        (off(1, 2, 3), "one element [1, 2, 3]: 1 of 1,536"),
        (EXACT.float() * 0.98, "all 1,536; each by the factor 0.98"),
        (-EXACT.float(), "all 1,536; each with the opposite sign"),
        (EXACT[..., :12].float(), "another shape: [4, 16, 12], where its inputs give [4, 16, 24]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_region_is_told(wrong: torch.Tensor, words: str) -> None:
    mask = wrong != EXACT.float() if wrong.shape == EXACT.shape else torch.ones(1, dtype=torch.bool)
    assert which(mask, wrong, EXACT).replace(": 96 of", ": 64 of") == words or which(mask, wrong, EXACT) == words


def test_rows_that_lie_anywhere_and_each_37th_element_are_told() -> None:
    made = EXACT.float().clone()
    made.flatten(0, 1)[[3, 17, 40, 41, 60]] += 1.5
    assert told(made) == "5 of 64 rows, each as a whole"
    made = EXACT.float().clone()
    made.flatten()[5::37] *= -1
    assert told(made) == "each 37 elements one, from index 5 on: 42 of 1,536; each with the opposite sign"


@given(st.integers(4, 20), st.booleans())
def test_a_stuck_bit_is_told(bit: int, high: bool) -> None:
    bits = EXACT.float().view(torch.int32)
    wrong = (bits | (1 << bit) if high else bits & ~(1 << bit)).view(torch.float32)
    assert f"bit {bit} is {int(high)} in every number" in told(wrong)
