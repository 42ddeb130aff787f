"""The state of judging: every change of it has a name."""

from __future__ import annotations

import numpy as np

from numscope.compare.judge.findings import INHERITED, NO_CAUSE, ErrorSizes, History
from numscope.compare.judge.reasons import OutputDiffers
from numscope.compare.judge.state import State
from tests.unit.compare.judge.tables import X, chain, data, off, state_of
from tests.unit.compare.scripted import Script, numbers

G = numbers((16, 64), seed=3)
H = numbers((16, 64), seed=4)


def two_calls(error: float = 1e-3) -> State:
    return state_of(
        chain(("Torch.tanh", off(G, error)), ("Torch.exp", off(H, error))), chain(("Torch.tanh", G), ("Torch.exp", H))
    )


def test_calls_that_correspond_are_partners_and_their_outputs_counterparts() -> None:
    state = two_calls()
    assert state.target.partner.tolist() == state.reference.partner.tolist() == [0, 1, 2]
    (row,) = state.facts.made(1)
    t, r = state.facts.tensors(row)
    assert state.counterpart[t] == r


def test_what_a_wrong_call_made_is_wrong_with_its_cause() -> None:
    """| inherited | it is wrong because its inputs are |"""
    state = two_calls()
    cause = state.blame(OutputDiffers(), 1, ErrorSizes(1e-3, 1e-7))
    state.inherit(1, cause)
    (row,) = state.facts.made(1)
    t, r = state.facts.tensors(row)
    assert state.target.wrong[t]
    assert state.reference.wrong[r]
    assert state.target.cause[t] == state.reference.cause[r] == cause
    assert state.verdict[1] == INHERITED
    assert state.wrong_slots().tolist() == [False, False, True, True, False]


def test_a_withdrawn_suspicion_makes_nothing_wrong() -> None:
    state = two_calls()
    cause = state.blame(OutputDiffers(), 1, ErrorSizes(1e-3, 1e-7), firm=False)
    state.inherit(1, cause)
    state.suspicions[cause].withdraw(2.0)
    assert not state.wrong_slots().any()
    assert not state.anything_wrong()
    assert state.first_cause() == NO_CAUSE
    assert not state.has_open_cause(cause)


def test_a_fault_of_an_earlier_step_is_a_cause_without_number() -> None:
    """The first step that is off has the origin; what follows is inherited, however large it grows."""
    state = state_of(chain(("Torch.tanh", G)), chain(("Torch.tanh", G)), History(diverged=True, started=True))
    assert state.anything_wrong()
    assert state.first_cause() == NO_CAUSE
    assert state.has_open_cause(NO_CAUSE)


def test_a_pair_that_is_uncoupled_has_no_partner_and_its_backward_none() -> None:
    """A call that is given a wrong tensor, though all that corresponds before it is right, does not correspond any more."""

    def script() -> Script:
        made = data(Script(), X)
        made.call("Torch.tanh.0.forward", {"input.0": X}, {"output.0": G})
        made.call("Torch.tanh.0.backward", {"input.0": H}, {"output.0": H * np.float32(2)}, forward=1)
        return made

    state = state_of(script(), script())
    state.uncouple(1, [7])
    assert state.corresponds.tolist() == [True, False, False]
    assert state.target.partner.tolist() == [0, -1, -1]
    assert state.target.suspicions_of == state.reference.suspicions_of == {1: [7]}
    assert (state.counterpart[[state.facts.slots.a[row] for row in state.facts.made(1)]] == -1).all()


def test_the_largest_error_that_rounding_explained_counts_by_phase() -> None:
    state = two_calls()
    state.note_rounding(1, 1e-7)
    state.note_rounding(2, 1e-8)
    state.note_rounding(2, float("inf"))
    assert state.rounding["forward"] == 1e-7
    state.history.noise = 1e-6
    assert state.rounding_so_far() == 1e-6


def test_the_error_of_what_is_explained_by_a_flip_says_nothing_of_rounding() -> None:
    """Integers and bools (argmax, top-k, comparisons) flip likewise; what follows from a flip is explained by it."""
    order = np.arange(64)

    def gathered(chosen: np.ndarray, made: np.ndarray) -> Script:
        script = data(Script(), X, chosen)
        script.call("Tensor.gather.0.forward", {"input.0": X, "input.1": chosen}, {"output.0": made})
        return script

    state = state_of(gathered(order[::-1].copy(), H), gathered(order, G))
    state.note_rounding(2, 1.4)
    assert state.rounding["forward"] == 0.0


def test_calls_that_led_to_a_right_result_are_cleared() -> None:
    """Cleared calls come last."""
    state = two_calls()
    state.clear((1,), (1, 2))
    assert (state.target.cleared, state.reference.cleared) == ({1}, {1, 2})
