"""Where a wrong input came from."""

from __future__ import annotations

import numpy as np
import pytest

from numscope.compare.judge.findings import History, OptimizerOutput, Standing
from numscope.compare.judge.paths.provenance import Provenance
from numscope.compare.judge.reasons import DataDiffers, ParameterDiffers, UnrecordedWork
from numscope.compare.judge.state import State
from numscope.fingerprint.definition import fingerprint
from tests.unit.compare.judge.tables import Array, W, X, chain, data, judged, off, state_of
from tests.unit.compare.scripted import Script, numbers

G = numbers((16, 64), seed=3)


def module(weight: Array, given: Array = X, *, class_name: str = "Linear", made: Array | None = None) -> Script:
    """A linear layer, as a module with its function."""
    made = given @ weight if made is None else made
    script = data(Script(), given)
    held = {"input.0": given, "parameters.weight": weight}
    outer = script.call("Module.up.Linear.forward.0", held, {"output.0": made}, module="up", module_class=class_name)
    inner = {"input.0": given, "input.1": weight}
    script.call("Functional.linear.0.forward", inner, {"output.0": made}, module="up", parent=outer)
    return script


def weight_of(state: State) -> tuple[int, int]:
    """Return the pair and the slot pair in which the module holds its weight."""
    return 1, next(row for row in state.facts.given(1) if state.facts.slot(row) == "parameters.weight")


def test_a_tensor_is_as_right_as_the_pair_that_made_it() -> None:
    """The tensor is as right as that pair."""
    state = state_of(chain(("Torch.tanh", off(G, 1e-3)), ("Torch.exp", X)), chain(("Torch.tanh", G), ("Torch.exp", X)))
    (made,), (given,) = state.facts.made(1), state.facts.given(2)
    assert Provenance(state).check(2, given).is_right
    state.mark_wrong(*state.facts.tensors(made), 1e-3, 7)
    assert Provenance(state).check(2, given) == (Standing.TAINTED, 7)


def test_data_that_differs() -> None:
    """Nothing recorded made it, and it enters before any call: the input data differs, by more than 4 u."""
    found = judged(chain(("Torch.tanh", G), given=off(X, 1e-3)), chain(("Torch.tanh", G)))
    assert isinstance(found.findings[0].reason, DataDiffers)
    rounded = judged(chain(("Torch.tanh", G), given=off(X, 1e-7)), chain(("Torch.tanh", G)))
    assert rounded.findings == []


def test_a_parameter_that_differs_before_any_call() -> None:
    """It is in the slot of a parameter or buffer and differs before any call."""
    found = judged(module(off(W, 1e-2)), module(W))
    (finding,) = found.findings
    assert finding.reason == ParameterDiffers()
    assert finding.slot == "parameters.weight"
    assert judged(module(off(W, 1e-7)), module(W)).findings == []


def test_a_parameter_may_start_a_step_as_far_off_as_the_optimizer_left_it() -> None:
    """A parameter may start a step as far off as the optimizer left it (four times that, and 4 u)."""
    known = History(started=True, parameter_errors={"parameters.up.weight": 1e-3})
    state = state_of(module(off(W, 3e-3)), module(W), known)
    assert Provenance(state).check(*weight_of(state)).is_right
    state = state_of(
        module(off(W, 6e-3)), module(W), History(started=True, parameter_errors={"parameters.up.weight": 1e-3})
    )
    assert Provenance(state).check(*weight_of(state)).standing is Standing.TAINTED
    assert state.suspicions[0].finding.reason == ParameterDiffers(between_steps=True)


def test_a_parameter_whose_update_was_wrong_is_inherited() -> None:
    """It is equivalent if only rounding made it so, inherited if its update was wrong or followed from something wrong."""
    history = History(
        started=True,
        diverged=True,
        parameter_errors={"parameters.up.weight": 1e-3},
        wrong_parameters={"parameters.up.weight"},
    )
    state = state_of(module(off(W, 1e-3)), module(W), history)
    assert Provenance(state).check(*weight_of(state)) == (Standing.TAINTED, -1)
    assert state.suspicions == []


def test_a_call_that_changed_state_is_named_when_it_shows() -> None:
    """A call whose arguments differ without effect on its output (BatchNorm's momentum) is remembered, and named when the
    state that it changed shows."""
    first = judged(momentum(0.1, 0.0), momentum(0.2, 0.0))
    assert first.findings == []
    assert set(first.history.state_changes) == {"buffers.norm.running_mean", "buffers.norm.running_var"}
    found = judged(momentum(0.1, 0.05), momentum(0.2, 0.0), first.history)
    assert found.named() == "Functional.batch_norm.0.forward"
    assert "it changes state that later steps read" in found.sentences()[0]


def momentum(value: float, error: float) -> Script:
    script = data(Script(), X)
    mean = numbers((64,), seed=11)
    held = {"input.0": X, "buffers.running_mean": off(mean, error) if error else mean}
    outer = script.call("Module.norm.BatchNorm1d.forward.0", held, {"output.0": G}, module="norm")
    arguments = {"momentum": value}
    script.call(
        "Functional.batch_norm.0.forward",
        {"input.0": X},
        {"output.0": G},
        module="norm",
        parent=outer,
        arguments=arguments,
    )
    return script


def gap(error: float) -> Script:
    """tanh, then something that was not recorded, then exp."""
    script = chain(("Torch.tanh", G))
    between = off(G * np.float32(3), error) if error else G * np.float32(3)
    script.call("Torch.exp.0.forward", {"input.0": between}, {"output.0": X})
    return script


@pytest.mark.parametrize(("error", "right"), [(5e-7, True), (5e-6, False)])
def test_a_gap_in_the_middle_of_a_step(error: float, right: bool) -> None:
    """What such code may do by rounding is 16 u plus 16 times the largest error that rounding explained so far; four times
    as much in backward, and where only modules were recorded."""
    state = state_of(gap(error), gap(0.0))
    (row,) = state.facts.given(2)
    assert Provenance(state).check(2, row).is_right is right


def test_the_first_call_that_is_given_what_a_gap_made_is_named() -> None:
    """The first call that is given it is named."""
    script, reference = gap(1e-3), gap(0.0)
    for one in (script, reference):
        module_before = one.calls[1]
        module_before.update(kind="module", name="Module.act.Tanh.forward.0", module="act", module_class="Tanh")
    found = judged(script, reference)
    assert isinstance(found.findings[0].reason, UnrecordedWork)
    assert found.named() == "Torch.exp.0.forward"


def test_what_an_optimizer_left_is_as_far_off_as_it_was_then() -> None:
    script = gap(1e-4)
    between = script.arrays[2]
    made = {int(fingerprint(between).hash[0]): OptimizerOutput(1e-4, wrong=False)}
    state = state_of(script, gap(0.0), History(started=True, optimizer_outputs=made))
    (row,) = state.facts.given(2)
    assert Provenance(state).check(2, row).is_right


def test_right_tensors_of_unrelated_runs_have_nothing_in_common() -> None:
    """Runs whose right tensors are as far apart as they are large (after steps of a far too large learning rate) have no
    origin in code that was not recorded."""
    state = state_of(gap(100.0), gap(0.0), History(started=True, noise=1.5))
    (row,) = state.facts.given(2)
    assert Provenance(state).check(2, row).is_right


def test_a_weight_that_two_classes_keep_in_two_layouts() -> None:
    """Where modules of two classes (a linear layer and GPT-2's transposed one) keep a parameter in two shapes, or compute
    equal results with it from equal inputs, its elements and those of its gradient are not compared."""
    made = X @ W
    target = module(np.ascontiguousarray(W.T), class_name="Conv1D", made=made)
    state = state_of(target, module(W, made=made))
    assert Provenance(state).check(*weight_of(state)).is_right
    assert state.history.other_layouts == {"parameters.up.weight"}


@pytest.mark.parametrize(("error", "right"), [(2e-6, True), (2e-5, False)])
def test_a_sum_of_gradients_may_round_four_times_as_much(error: float, right: bool) -> None:
    def script(wrong: float) -> Script:
        made = chain(("Torch.tanh", G))
        gradient = numbers((16, 64), seed=12)
        given = off(gradient, wrong) if wrong else gradient
        made.call("Torch.tanh.0.backward", {"input.0": given}, {"output.0": X + G}, forward=1)
        return made

    state = state_of(script(error), script(0.0))
    (row,) = state.facts.given(2)
    assert Provenance(state).check(2, row).is_right is right
