"""Looks for a tensor in the other run, whichever call made it there."""

from __future__ import annotations

import numpy as np

from numscope.compare.judge.paths.counterparts import changed_places, lone_calls_make_up, same_values
from tests.unit.compare.judge.tables import X, data, facts_of, judged, off, state_of
from tests.unit.compare.scripted import Script, numbers

LEFT, RIGHT = X[:, :32].copy(), X[:, 32:].copy()


def halves(first: int) -> Script:
    """Both halves of X, in one order or the other and by other arguments, and their product."""
    script = data(Script(), X)
    parts = [LEFT, RIGHT]
    for number, half in enumerate((first, 1 - first)):
        made, arguments = {"output.0": parts[half]}, {"1": [first, number]}
        script.call(f"Tensor.getitem.{number}.forward", {"input.0": X}, made, arguments=arguments)
    given = {"input.0": LEFT, "input.1": RIGHT}
    script.call("Tensor.mul.0.forward", given, {"output.0": LEFT * RIGHT})
    return script


def test_halves_in_another_order_are_no_origin() -> None:
    """A moving call that gives something else is no origin if each side's result is made by another call of the other
    side."""
    facts = facts_of(halves(1), halves(0))
    (row,) = facts.made(1)
    assert facts.error(row) > 0.5
    assert changed_places(facts, row)
    assert judged(halves(1), halves(0)).findings == []


def test_a_half_that_nothing_makes_in_the_other_run_did_not_change_places() -> None:
    target = halves(1)
    reference = data(Script(), X)
    reference.call("Tensor.getitem.0.forward", {"input.0": X}, {"output.0": LEFT})
    facts = facts_of(target, reference)
    (row,) = facts.made(1)
    assert not changed_places(facts, row)


def test_tensors_of_other_shapes_may_have_the_same_values() -> None:
    def script(array: np.ndarray) -> Script:
        return data(Script(), array)

    assert same_values(facts_of(script(X), script(X.reshape(32, 32))), 0, 0)
    assert not same_values(facts_of(script(X), script(off(X, 1e-3))), 0, 0)
    assert not same_values(facts_of(script(X), script(X[:8])), 0, 0)


def averaged(in_one: bool) -> Script:
    """The mean, or the sum divided by the count."""
    script = data(Script(), X)
    mean = X.mean(1, dtype=np.float64).astype(np.float32)
    if in_one:
        script.call("Torch.norm.0.forward", {"input.0": X}, {"output.0": mean}, arguments={"p": "mean"})
    else:
        total = X.sum(1, dtype=np.float64).astype(np.float32)
        script.call("Torch.norm.0.forward", {"input.0": X}, {"output.0": total}, arguments={"p": "sum"})
        script.call("Tensor.div.0.forward", {"input.0": total}, {"output.0": (total / 64).astype(np.float32)})
        mean = script.arrays[-1]
    script.call("Torch.tanh.0.forward", {"input.0": mean}, {"output.0": np.tanh(numbers((16,), seed=8))})
    return script


def test_a_sum_that_is_divided_later_is_no_origin() -> None:
    """A call whose arguments differ is no origin if further calls, which one side alone has, reach the other's result."""
    state = state_of(averaged(False), averaged(True))
    (row,) = state.facts.made(1)
    assert lone_calls_make_up(state, row)
    assert judged(averaged(False), averaged(True)).findings == []
