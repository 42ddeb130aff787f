"""A call that one side alone has, where no inputs were recorded."""

from __future__ import annotations

from numscope.compare.judge.findings import ErrorSizes, Inputs
from numscope.compare.judge.rules.unrecorded_calls import lone_call_before
from tests.unit.compare.judge.tables import X, data, facts_of, judged, off
from tests.unit.compare.scripted import Script, numbers

G, H, K = (numbers((16, 64), seed=seed) for seed in (3, 4, 5))
SIZES = ErrorSizes(0.1, 1e-6, 1e-7)


def outputs(lone: str = "", error: float = 0.0) -> Script:
    """tanh, a call that one side alone may have, and exp; outputs alone."""
    script = data(Script(), X)
    script.call("Torch.tanh.0.forward", None, {"output.0": G})
    if lone:
        script.call(f"{lone}.0.forward", None, {"output.0": K})
    script.call("Torch.exp.0.forward", None, {"output.0": off(H, error) if error else H})
    return script


def test_the_call_between_the_last_pair_that_agrees_and_the_first_that_does_not() -> None:
    """A call that one side alone has, between the last pair that agrees and the first that does not, is named."""
    found = lone_call_before(facts_of(outputs("Tensor.mul"), outputs()), 2, SIZES)
    assert found is not None
    assert (found.target, found.reference, found.inputs) == (2, -1, Inputs.UNRECORDED)
    missing = lone_call_before(facts_of(outputs(), outputs("Tensor.mul")), 2, SIZES)
    assert missing is not None
    assert (missing.target, missing.reference) == (-1, 2)
    assert judged(outputs("Tensor.mul", 0.1), outputs()).named() == "Tensor.mul.0.forward"


def test_a_call_that_computes_nothing_is_not_named() -> None:
    assert lone_call_before(facts_of(outputs("Tensor.view"), outputs()), 2, SIZES) is None
    assert lone_call_before(facts_of(outputs("Torch.randn"), outputs()), 2, SIZES) is None


def test_a_call_before_another_pair_is_not_named() -> None:
    assert lone_call_before(facts_of(outputs("Tensor.mul"), outputs()), 1, SIZES) is None
