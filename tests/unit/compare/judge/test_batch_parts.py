"""Runs that are given parts of other sizes of one batch."""

from __future__ import annotations

import pytest

from tests.unit.compare.judge.tables import data, facts_of
from tests.unit.compare.scripted import Script, numbers


def shapes(target: tuple[int, ...], reference: tuple[int, ...]) -> str:
    return facts_of(data(Script(), numbers(target)), data(Script(), numbers(reference))).batch_shapes


@pytest.mark.parametrize(("target", "reference"), [((4, 12), (8, 12)), ((4, 6), (4, 12)), ((3, 12), (8, 12))], ids=str)
def test_data_of_other_sizes_of_a_batch(target: tuple[int, ...], reference: tuple[int, ...]) -> None:
    """Micro batches and ranks are given parts of the data: all but its first dimension is the same, or one is a multiple of
    the other in the second."""
    assert shapes(target, reference) == f"{list(target)} against {list(reference)}"


@pytest.mark.parametrize(
    ("target", "reference"), [((4, 5), (4, 12)), ((4, 12), (8, 6)), ((4, 12), (4, 12)), ((4, 3, 2), (4, 3, 4))], ids=str
)
def test_data_that_differs_otherwise_is_no_part_of_a_batch(target: tuple[int, ...], reference: tuple[int, ...]) -> None:
    assert shapes(target, reference) == ""


def test_calls_that_choose_samples_do_not_correspond() -> None:
    """Their calls are not compared one by one."""

    def sampled(rows: int) -> Script:
        x, chosen = numbers((rows, 12)), numbers((rows, 12), seed=2)
        script = data(Script(), x)
        script.call("Torch.roll.0.forward", {"input.0": x}, {"output.0": chosen}, arguments={"p": 0.5 * rows})
        return script

    facts = facts_of(sampled(4), sampled(8))
    assert not facts.corresponding[1]
