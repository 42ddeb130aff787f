"""Gradients, which the autograd engine adds up between calls."""

from __future__ import annotations

import numpy as np

from numscope.compare.judge.findings import ErrorSizes
from numscope.compare.judge.reasons import GradientOnOneSide, OutputDiffers
from numscope.compare.judge.rules.gradients import (
    cause_of_missing_gradient,
    forward_cause,
    further_use,
    lone_gradient,
    suspect_again,
    withdraw_by_gradients,
    withdraw_parts_of_sum,
)
from tests.unit.compare.judge.tables import Array, X, data, judged, off, state_of
from tests.unit.compare.scripted import Script, numbers

G, H, K = (numbers((16, 64), seed=seed) for seed in (3, 4, 5))
SIZES = ErrorSizes(0.5, 1e-6)


def forward_and_backward(*, detached: bool = False, gradient: Array = K, lone: str = "") -> Script:
    """tanh and its backward, with calls that one side alone has; the gradient that comes in was made by nothing recorded."""
    script = data(Script(), X)
    script.call("Torch.tanh.0.forward", {"input.0": X}, {"output.0": G})
    if detached:
        script.call("Tensor.detach.0.forward", {"input.0": G}, {"output.0": G.copy()})
    if lone:
        script.call(f"Torch.{lone}.0.forward", {"input.0": G}, {"output.0": H})
    script.call("Torch.tanh.0.backward", {"input.0": gradient}, {"output.0": gradient * np.float32(2)}, forward=1)
    return script


def test_a_detach_is_named_before_the_gap() -> None:
    """Where every call before agrees and a gradient does not, a forward call that one side alone has (`detach`, a term of
    the loss) is named before the gap."""
    target = forward_and_backward(detached=True, lone="exp", gradient=off(K, 0.5))
    state = state_of(target, forward_and_backward())
    pair = len(state.corresponds) - 1
    (row,) = state.facts.given(pair)
    cause = forward_cause(state, pair, row, SIZES)
    assert cause is not None
    finding = state.suspicions[cause].finding
    assert state.facts.a.calls.name(finding.target) == "Tensor.detach.0.forward"


def test_a_term_of_the_loss_is_named_where_nothing_is_detached() -> None:
    state = state_of(forward_and_backward(), forward_and_backward(lone="exp", gradient=off(K, 0.5)))
    pair = len(state.corresponds) - 1
    (row,) = state.facts.given(pair)
    cause = forward_cause(state, pair, row, SIZES)
    assert cause is not None
    finding = state.suspicions[cause].finding
    assert state.facts.b.calls.name(finding.reference) == "Torch.exp.0.forward"


def test_a_call_that_chooses_or_moves_has_no_gradient_to_blame() -> None:
    state = state_of(forward_and_backward(lone="argmax"), forward_and_backward(gradient=off(K, 0.5)))
    pair = len(state.corresponds) - 1
    (row,) = state.facts.given(pair)
    assert forward_cause(state, pair, row, SIZES) is None


def test_ways_that_met_in_forward_are_suspected_again() -> None:
    """Ways that met in forward (`h - h.sum()` and `h - h.mean()`, where h has no mean) are suspected again where their
    gradients part."""

    def script(error: float) -> Script:
        made = forward_and_backward()
        gradient = off(H, error) if error else H
        made.call("Torch.exp.0.forward", {"input.0": X}, {"output.0": K})
        made.slots[-3]["tensor"] = made._number(gradient)  # what tanh's backward made
        made.call("Torch.exp.0.backward", {"input.0": G}, {"output.0": X}, forward=3)
        return made

    state = state_of(script(0.5), script(0.0))
    cause = state.blame(OutputDiffers(), 1, SIZES, firm=False)
    state.suspicions[cause].withdraw(9.0)
    assert suspect_again(state, len(state.corresponds) - 1) == cause
    assert state.suspicions[cause].stands
    assert suspect_again(state, 1) is None


def one_sided(extra: bool) -> Script:
    """add and its backward, which has a second gradient on one side alone; then a norm of all gradients."""
    script = data(Script(), X)
    script.call("Torch.add.0.forward", {"input.0": X, "input.1": G}, {"output.0": X + G})
    made = {"output.0": H, "output.1": K} if extra else {"output.0": H}
    script.call("Torch.add.0.backward", {"input.0": G}, made, forward=1)
    given = {"input.0.0": H, "input.0.1": K} if extra else {"input.0.0": H}
    script.call("Torch.linalg_vector_norm.0.forward", given, {"output.0": X})
    grads = {"parameters_grad.up.weight": K} if extra else {}
    script.call("Optimizer.Adam.step.0", {"parameters.up.weight": G, **grads}, {"output.up.weight": X})
    return script


def test_a_gradient_on_one_side_alone_is_followed_to_the_call_that_makes_it() -> None:
    """A gradient on one side alone is followed to the backward call that makes it there."""
    for extra, who in ((True, "target"), (False, "reference")):
        state = state_of(one_sided(extra), one_sided(not extra))
        step = len(state.corresponds) - 1
        cause = cause_of_missing_gradient(state, step, "up.weight", SIZES)
        assert cause is not None
        finding = state.suspicions[cause].finding
        assert finding.reason == GradientOnOneSide("target" if extra else "reference")
        assert (state.facts.target_name(finding.pair), finding.slot) == ("Torch.add.0.backward", "for up.weight")
        norm = lone_gradient(state.facts, 3)
        assert norm is not None
        assert (norm.who, norm.slot) == (who, "as output.1")


def used_twice(twice: bool) -> Script:
    """tanh's output is used by exp, and on one side by mul, so that its gradient there is a sum of the engine's."""
    script = data(Script(), X)
    script.call("Torch.tanh.0.forward", {"input.0": X}, {"output.0": G})
    script.call("Torch.exp.0.forward", {"input.0": G}, {"output.0": H})
    if twice:
        script.call("Torch.mul.0.forward", {"input.0": G}, {"output.0": K})
    back = K * np.float32(3)
    script.call("Torch.exp.0.backward", {"input.0": numbers((16, 64), seed=9)}, {"output.0": back}, forward=2)
    came = back + H if twice else back
    script.call("Torch.tanh.0.backward", {"input.0": came}, {"output.0": H * np.float32(4)}, forward=1)
    return script


def test_a_further_use_of_a_tensor_adds_to_its_gradient() -> None:
    state = state_of(used_twice(True), used_twice(False))
    pair = len(state.corresponds) - 1
    (row,) = state.facts.given(pair)
    cause = further_use(state, pair, row, SIZES)
    assert cause is not None
    finding = state.suspicions[cause].finding
    assert state.facts.a.calls.name(finding.target) == "Torch.mul.0.forward"
    assert further_use(state_of(used_twice(False), used_twice(False)), pair, row, SIZES) is None


def test_all_gradients_agree() -> None:
    """If all gradients that reach the optimizer agree in float32, suspicions of what is differentiated are withdrawn: half
    the batch twice adds up to the whole, whatever is counted beside the graph on the way."""
    state = state_of(forward_and_backward(lone="exp"), forward_and_backward())
    inside = state.blame(OutputDiffers(), 1, SIZES, firm=False)
    firm = state.blame(OutputDiffers(), 1, SIZES, firm=True)
    withdraw_by_gradients(state, 9.0)
    assert not state.suspicions[inside].stands
    assert state.suspicions[firm].stands


def test_where_no_gradient_can_be_compared_other_arguments_stay_suspected() -> None:
    """If no gradient can be compared, only calls whose arguments differ stay suspected, and the next step's parameters may
    be as far apart as two steps of the optimizer."""

    def script(p: float) -> Script:
        made = data(Script(), X)
        made.call("Functional.gelu.0.forward", {"input.0": X}, {"output.0": G}, arguments={"approximate": p})
        made.call("Functional.gelu.0.backward", {"input.0": H}, {"output.0": K}, forward=1)
        return made

    state = state_of(script(0.5), script(0.25))
    cause = state.blame(OutputDiffers(), 1, SIZES, firm=False)
    withdraw_by_gradients(state, 9.0, unmeasured=True)
    assert state.suspicions[cause].stands
    withdraw_by_gradients(state, 9.0)
    assert not state.suspicions[cause].stands


def test_a_part_of_a_sum_is_no_fault_where_the_sum_is_right() -> None:
    """A suspicion of a gradient that is a part of a sum is withdrawn where the sum agrees."""

    def script() -> Script:
        made = data(Script(), X)
        made.call("Torch.tanh.0.forward", {"input.0": X}, {"output.0": G})
        made.call("Torch.exp.0.forward", {"input.0": G}, {"output.0": H})
        made.call("Torch.exp.0.backward", {"input.0": K}, {"output.0": X}, forward=2)
        made.call("Torch.tanh.0.backward", {"input.0": X + K}, {"output.0": H}, forward=1)
        return made

    state = state_of(script(), script())
    cause = state.blame(OutputDiffers(), 3, SIZES, firm=False)
    withdraw_parts_of_sum(state, 4, 0.4)
    assert state.suspicions[cause].stands  # an error that only fades is no agreement
    withdraw_parts_of_sum(state, 4, 1e-6)
    assert not state.suspicions[cause].stands


def test_the_forward_call_is_named_for_a_backward_call_that_one_side_alone_has() -> None:
    """The forward call is named for a backward call that one side alone has, where that forward call is alone too."""

    def script(extra: bool) -> Script:
        made = data(Script(), X)
        made.call("Torch.tanh.0.forward", {"input.0": X}, {"output.0": G})
        gradient = K
        if extra:
            made.call("Torch.clone.0.forward", {"input.0": G}, {"output.0": G.copy()})
        made.call("Torch.softmax.0.forward", {"input.0": G}, {"output.0": H})
        made.call("Torch.softmax.0.backward", {"input.0": X}, {"output.0": K}, forward=3 if extra else 2)
        if extra:
            gradient = K * np.float32(2)
            made.call("Torch.clone.0.backward", {"input.0": K}, {"output.0": gradient}, forward=2)
        made.call("Torch.tanh.0.backward", {"input.0": gradient}, {"output.0": gradient + X}, forward=1)
        return made

    assert judged(script(True), script(False)).named() == "Torch.clone.0.forward"
