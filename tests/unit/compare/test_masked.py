"""Masked tensors: where they are filled counts exactly, the rest relatively, and what cannot be known is not the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from numscope.compare.comparison import compare
from numscope.compare.load.side import Codebook, Side
from numscope.compare.measure.masked import look_through_masks
from tests.unit.compare.scripted import Script, numbers

LOWEST = float(np.finfo(np.float32).min)
FILLS = (-1e4, -65504.0, -1e9, LOWEST)
BEYOND_A_SKETCH = (LOWEST,)  # in float32, in which runs keep sketches


def side(array: NDArray[Any], book: Codebook) -> Side:
    script = Script()
    script.call("Torch.add.0.forward", made={"output.0": array})
    return script.side(book)


def measured(target: NDArray[Any], reference: NDArray[Any], with_data: bool) -> float:
    book = Codebook()
    error, zero = np.array([0.25]), np.array([0])
    has_data = np.array([with_data])
    a, b = side(target, book), side(reference, book)
    look_through_masks(a, b, zero, zero, zero, error, has_data, lambda t, r: (target, reference))
    return float(error[0])


def masked(scores: NDArray[Any], where: NDArray[np.bool_], fill: float) -> NDArray[Any]:
    return np.where(where, np.float32(fill), scores).astype(np.float32)


@given(st.sampled_from(FILLS), st.sampled_from(FILLS), st.integers(0, 1000), st.booleans(), st.integers(8, 60))
def test_a_mask_that_is_filled_elsewhere_is_off_by_as_much_as_it_moved(
    fill: float, other: float, seed: int, pure: bool, size: int
) -> None:
    """Of fingerprints alone: how many and where is known of each fill that fits into a sketch."""
    random = np.random.default_rng(seed)
    where = random.random((size, size)) < 0.3
    moved = np.roll(where, 1, axis=1)
    scores = np.zeros((size, size), np.float32) if pure else random.standard_normal((size, size)).astype(np.float32)
    off = measured(masked(scores, moved, fill), masked(scores, where, other), with_data=False)
    same = measured(masked(scores, where, fill), masked(scores, where, other), with_data=False)
    assert np.isnan(same)  # the same is filled; what the fill hides is not called the same
    if np.isnan(off):  # two fills or more in one of a sketch's sums
        assert fill in BEYOND_A_SKETCH or other in BEYOND_A_SKETCH
        return
    truth = (np.count_nonzero(where != moved) / np.count_nonzero(where)) ** 0.5
    assert 0.5 * truth < off < 2 * truth


@given(st.sampled_from(FILLS), st.integers(0, 1000), st.integers(1, 40))
def test_a_fill_more_or_less_shows_whatever_the_fill(fill: float, seed: int, more: int) -> None:
    random = np.random.default_rng(seed)
    where = random.random((32, 32)) < 0.3
    wider = where.copy()
    wider.reshape(-1)[np.flatnonzero(~where)[:more]] = True
    scores = random.standard_normal((32, 32)).astype(np.float32)
    off = measured(masked(scores, wider, fill), masked(scores, where, fill), with_data=False)
    assert off >= 0.99 * (more / np.count_nonzero(where)) ** 0.5


@given(st.lists(st.sampled_from((*FILLS, -np.inf)), min_size=2, max_size=3, unique=True), st.integers(0, 1000))
def test_with_data_several_fills_are_left_out_and_the_rest_is_measured(fills: list[float], seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.standard_normal(2000).astype(np.float32)
    target, reference = scores * np.float32(1.02), scores.copy()
    for number, fill in enumerate(fills):
        target[number::7] = reference[number::7] = fill
    assert measured(target, reference, with_data=True) == pytest.approx(0.02, rel=1e-3)
    reference[3] = fills[0]  # one more is filled: that is no rounding
    assert measured(target, reference, with_data=True) > 0.9


@pytest.mark.parametrize("keep", [True, False], ids=["tensors", "stats"])
def test_infinities_elsewhere_are_not_called_equivalent(tmp_path: Path, keep: bool) -> None:
    """A mask of zeros and infinities has the same counts, norm and sketch wherever its infinities are."""

    def script(shift: int) -> Script:
        made = Script()
        mask = np.roll(np.where(np.tri(16) > 0, 0, -np.inf).astype(np.float32), shift, axis=1)
        made.call("Torch.full.0.forward", made={"output.0": mask})
        made.call("Torch.sigmoid.0.forward", {"input.0": mask}, {"output.0": numbers((16, 16), seed=shift)})
        return made

    found = compare(script(3).write(tmp_path / "a", keep), script(0).write(tmp_path / "b", keep))
    verdicts = dict(zip(found.pairs["target_name"].to_pylist(), found.pairs["verdict"].to_pylist()))
    assert verdicts["Torch.full.0.forward.output.0"] not in ("identical", "equivalent")
    assert found.verdict == "diverged"
