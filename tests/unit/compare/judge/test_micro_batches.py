"""Gradients of runs that are given parts of other sizes of one batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from numscope.compare.judge.findings import ErrorSizes
from numscope.compare.judge.reasons import DoesAnotherJob, GradientsOfParts, OutputDiffers
from numscope.compare.judge.rules.micro_batches import blame_gradients, lost_in_rounding
from numscope.compare.judge.state import State
from tests.unit.compare.judge.tables import Array, data, off, state_of
from tests.unit.compare.scripted import Script, numbers

FIRST, SECOND = numbers((64, 32), seed=3), numbers((32,), seed=4)


def step(rows: int, *gradients: Array) -> Script:
    script = data(Script(), numbers((rows, 12)))
    given = {f"parameters_grad.{number}": gradient for number, gradient in enumerate(gradients)}
    script.call("Optimizer.Adam.step.0", given, {"output.0": numbers((64, 32), seed=6)})
    return script


def gradients_of(state: State) -> list[int]:
    return state.facts.given(1)


def test_the_factor_is_named_if_it_is_one_for_all() -> None:
    """The optimizer's step is named with the worst gradient, how many are off, and the factor if it is one for all."""
    four = np.float32(4)
    state = state_of(step(8, FIRST * four, SECOND * four), step(32, FIRST, SECOND))
    blame_gradients(state, 1, gradients_of(state))
    (suspicion,) = state.suspicions
    assert suspicion.firm
    assert isinstance(suspicion.finding.reason, GradientsOfParts)
    sentence = suspicion.finding.reason.sentence(suspicion.finding, state.facts.a, state.facts.b)
    assert "2 of 2 gradients are 4 times the reference's" in sentence
    assert "[8, 12] against [32, 12]" in sentence


def test_gradients_that_are_off_by_no_common_factor() -> None:
    """A gradient counts as off by more than 1e-3 of itself and 1e-5 of all of them."""
    state = state_of(step(8, off(FIRST, 0.1), off(SECOND, 1e-4)), step(32, FIRST, SECOND))
    blame_gradients(state, 1, gradients_of(state))
    reason = state.suspicions[0].finding.reason
    assert isinstance(reason, GradientsOfParts)
    assert (reason.off, reason.count, reason.factor) == (1, 2, None)


def test_gradients_are_named_in_place_of_calls_that_a_part_made_differ() -> None:
    state = state_of(step(8, FIRST * np.float32(2)), step(32, FIRST))
    part = state.facts.finding(DoesAnotherJob(), 0, ErrorSizes(1.0, 1e-6))
    state.suspect(replace(part, batch_shapes=state.facts.batch_shapes), firm=False, at=0)
    blame_gradients(state, 1, gradients_of(state))
    (suspicion,) = state.suspicions
    assert isinstance(suspicion.finding.reason, GradientsOfParts)
    assert suspicion.firm


def test_a_call_whose_arguments_differ_is_named_before_that() -> None:
    """A call whose arguments differ is named before that."""
    state = state_of(step(8, FIRST * np.float32(2)), step(32, FIRST))
    state.blame(OutputDiffers(), 0, ErrorSizes(1.0, 1e-6))
    blame_gradients(state, 1, gradients_of(state))
    assert [type(one.finding.reason) for one in state.suspicions] == [OutputDiffers]


def test_a_gradient_lost_in_the_others() -> None:
    """In such runs a single gradient may differ by as much as rounding of all of them together: that of a key's bias is
    rounding alone."""
    tiny = SECOND * np.float32(1e-8)
    state = state_of(step(8, FIRST, off(tiny, 0.9)), step(32, FIRST, tiny))
    rows = gradients_of(state)
    assert {state.facts.slot(row) for row in lost_in_rounding(state.facts, rows)} == {
        "parameters_grad.0",
        "parameters_grad.1",
    }
    state = state_of(step(8, FIRST, off(SECOND, 0.9)), step(32, FIRST, SECOND))
    lost = lost_in_rounding(state.facts, gradients_of(state))
    assert {state.facts.slot(row) for row in lost} == {"parameters_grad.0"}
