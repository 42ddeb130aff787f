"""Discrete choices: a flip within the margin that came in is rounding, and explains the rows it moves alone."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from numscope.compare.judge.rounding.choices import Choice, error_of_other_rows, explained_flips, flipped
from tests.unit.compare.judge.tables import Judged, data, judged, off
from tests.unit.compare.scripted import Script, numbers

Array = NDArray[Any]
LOGITS = numbers((512, 8)).astype(ml_dtypes.bfloat16)
SHARP = numbers((512, 8))
EXPERTS = np.arange(96) % 4
ROWS = numbers((96, 32))
ORDER = np.argsort(EXPERTS, kind="stable")


def top(logits: Array) -> tuple[Array, Array]:
    places = np.argsort(-logits, axis=1)[:, :2]
    return np.take_along_axis(logits, places, 1), places


def before(given: Array) -> Script:
    """Return a script in which a call makes an array, with rounding of its own."""
    source = (SHARP if given.dtype == np.float32 else LOGITS)[:, : given.shape[1]]
    script = data(Script(), source)
    script.call("Functional.gelu.0.forward", {"input.0": source}, {"output.0": given})
    return script


def routed(given: Array, values: Array, places: Array) -> Script:
    script = before(given)
    script.call("Torch.topk.0.forward", {"input.0": given}, {"output.0": values, "output.1": places})
    return script


def sorted_and_gathered(order: Array, rows: Array = ROWS) -> Script:
    script = data(Script(), EXPERTS, ROWS)
    script.call("Torch.sort.0.forward", {"input.0": EXPERTS}, {"output.0": EXPERTS[order], "output.1": order})
    script.call("Tensor.__getitem__.0.forward", {"input.0": rows, "input.1": order}, {"output.0": rows[order]})
    return script


def best_of(given: Array, made: Array) -> Script:
    script = before(given)
    script.call("Torch.argmax.0.forward", {"input.0": given}, {"output.0": made})
    return script


def other_ties() -> Array:
    """Return another order of the same sorted values."""
    return np.lexsort((-np.arange(96), EXPERTS))


def test_a_tie_is_no_fault() -> None:
    """Equal values prove that what was chosen elsewhere was as good: a tie."""
    order = other_ties()
    assert (EXPERTS[order] == EXPERTS[ORDER]).all()
    assert (order != ORDER).any()
    found = judged(sorted_and_gathered(order), sorted_and_gathered(ORDER))
    assert found.findings == []
    assert found.judgement.choices == [Choice("Torch.sort.0.forward", 96, 96, 0.0)]
    assert str(found.judgement.choices[0]) == "Torch.sort.0.forward: 96 of 96 at most, ties"


def test_a_sort_that_sorts_otherwise_is_one() -> None:
    wrong = ORDER[::-1]
    assert judged(sorted_and_gathered(wrong), sorted_and_gathered(ORDER)).named() == "Torch.sort.0.forward"


def test_a_route_within_the_margin_is_no_fault() -> None:
    near = off(LOGITS, 3e-3)
    found = judged(routed(near, *top(near)), routed(LOGITS, *top(LOGITS)))
    assert (top(near)[1] != top(LOGITS)[1]).any()
    assert found.findings == []
    (choice,) = found.judgement.choices
    assert choice.margin == pytest.approx(3e-3, rel=0.5)
    assert 0 < choice.flipped < 512


def test_a_route_outside_the_margin_is_an_origin() -> None:
    """A route outside the margin is an origin: the values that came with it are not as good."""
    near = off(SHARP, 2e-7)
    values, places = (part.copy() for part in top(near))
    places[:40, 1] = np.argsort(-near, axis=1)[:40, 4]  # the fifth for the second
    values[:40, 1] = np.take_along_axis(near, places, 1)[:40, 1]
    assert judged(routed(near, values, places), routed(SHARP, *top(SHARP))).named() == "Torch.topk.0.forward"


def test_as_many_flip_as_lie_within_the_margin() -> None:
    best = np.argmax(SHARP, axis=1)

    def with_flips(count: int) -> Judged:
        other = best.copy()
        other[:count] = (other[:count] + 1) % 8
        return judged(best_of(off(SHARP, 2e-7), other), best_of(SHARP, best))

    assert with_flips(2).findings == []
    assert with_flips(400).named() == "Torch.argmax.0.forward"


@pytest.mark.parametrize(("made", "named"), [("its row", ""), ("all rows reversed", "Tensor.__getitem__.0.forward")])
def test_a_flip_explains_its_own_rows_alone(made: str, named: str) -> None:
    """What is indexed by a flipped place is another row, and is explained for these rows only."""
    table, best = numbers((512, 8), seed=3), np.arange(512)
    other = best.copy()
    other[5] = 4
    wrong = table[other] if made == "its row" else table[::-1].copy()
    target, reference = best_of(off(SHARP, 2e-7), other), best_of(SHARP, best)
    for script, places, rows in ((target, other, wrong), (reference, best, table[best])):
        script.call("Tensor.__getitem__.0.forward", {"input.0": table, "input.1": places}, {"output.0": rows})
    assert judged(target, reference).named() == named


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from((1e-6, 1e-4, 1e-2)), st.sampled_from((2, 8, 64)))
def test_what_an_error_flips_in_an_argmax_is_within_what_is_explained(seed: int, error: float, width: int) -> None:
    logits = numbers((256, width), seed)
    near = off(logits, error, seed + 1)
    flips = (np.argmax(logits, 1) != np.argmax(near, 1)).sum()
    assert flips <= explained_flips(np.array([error]), np.array([float(logits.size)]), np.array([False]))[0]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from((1e-6, 1e-4, 1e-2)))
def test_what_an_error_moves_in_an_argsort_is_within_what_is_explained(seed: int, error: float) -> None:
    values = numbers((4, 200), seed)
    moved = (np.argsort(values, 1) != np.argsort(off(values, error, seed + 1), 1)).sum()
    assert moved <= explained_flips(np.array([error]), np.array([float(values.size)]), np.array([True]))[0]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 95))
def test_the_distance_of_two_choices_bounds_how_many_differ(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    one = random.integers(0, 16, 96)
    other = one.copy()
    other[:count] = (one[:count] + random.integers(1, 16, count)) % 16
    distance = np.array([np.linalg.norm((one - other).astype(np.float64))])
    found = flipped(distance, np.array([96.0]), np.array([15.0]), np.array([False]))
    assert found.least[0] <= count <= found.most[0]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 60))
def test_rows_from_elsewhere_are_off_by_no_more_than_is_explained(seed: int, count: int) -> None:
    table = numbers((96, 32), seed) * (1 + 9 * (np.arange(96) % 8 == 0))[:, None]
    other = np.arange(96)
    other[:count] = np.random.default_rng(seed).permutation(96)[:count]
    error = np.linalg.norm(table[other] - table) / np.linalg.norm(table)
    peak = np.abs(table).max() * np.sqrt(table.size) / np.linalg.norm(table)
    assert error <= error_of_other_rows(np.array([count / 96]), np.array([peak]))[0]
