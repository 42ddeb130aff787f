"""An optimizer's step, parameter by parameter."""

from __future__ import annotations

import numpy as np
import pytest

from numscope.compare.judge.findings import History
from tests.unit.compare.judge.tables import Array, judged, off
from tests.unit.compare.scripted import Script, numbers

P, Q = numbers((64, 32), seed=11), numbers((64, 32), seed=13)
GRADIENT = numbers((64, 32), seed=12)
SIGNS = np.sign(GRADIENT).astype(np.float32)
D = 0.01  # the step, as a share of the parameter, is about this


def step(
    moved: Array = SIGNS,
    gradient: Array = GRADIENT,
    *,
    name: str = "Adam",
    before: Array = P,
    lr: float = 1e-3,
) -> Script:
    script = Script()
    after = (before + np.float32(D) * moved).astype(np.float32)
    given = {"parameters.up.weight": before, "parameters_grad.up.weight": gradient}
    script.call(f"Optimizer.{name}.step.0", given, {"output.up.weight": after}, arguments={"lr": lr})
    return script


def judged_step(target: Script, reference: Script, history: History | None = None) -> str:
    """Return the verdict of a step after one whose rounding explains the errors of the gradients."""
    history = history or History(started=True, noise=1e-3)
    found = judged(target, reference, history)
    return found.verdict(target.calls[0]["name"])


def test_updates_are_judged_by_the_step_that_they_took() -> None:
    """Updates are judged by the step that they took, not by the parameter's size (table below)."""
    assert judged_step(step(), step()) == "identical"
    assert judged_step(step(SIGNS * np.float32(1.01)), step()) == "origin"


def test_the_same_gradients_allow_nothing_but_rounding() -> None:
    """| the same to the bit | 4e-6 d |"""
    assert judged_step(step(SIGNS * np.float32(1 + 1e-5)), step()) == "equivalent"  # 4 u is more than 4e-6 d
    assert judged_step(step(SIGNS * np.float32(1 + 1e-3)), step()) == "origin"


def noisy(error: float) -> Array:
    return off(GRADIENT, error)


@pytest.mark.parametrize(("excess", "verdict"), [(2e-3, "equivalent"), (5e-2, "origin")])
def test_a_step_in_proportion_to_the_gradient(excess: float, verdict: str) -> None:
    """| differ; SGD | (8 e + 1e-4) d |"""
    moved = off(SIGNS, excess)
    assert judged_step(step(moved, noisy(1e-3), name="SGD"), step(name="SGD")) == verdict


def test_the_sign_of_a_tiny_gradient_is_a_full_step() -> None:
    """With any noise in the gradient, both sides' steps together are allowed, none longer than one and a half times the
    reference's longest."""
    other = SIGNS.copy()
    other[::8] *= -1
    assert judged_step(step(other, noisy(1e-6)), step()) == "equivalent"
    assert judged_step(step(SIGNS * np.float32(4), noisy(1e-6)), step()) == "origin"


def test_other_settings_excuse_nothing_but_the_noise_itself() -> None:
    """Where `lr`, `betas` or the optimizer's class differ, only what the noise itself does is allowed."""
    other = SIGNS * np.float32(1.1)
    assert judged_step(step(other, noisy(1e-6)), step()) == "equivalent"
    assert judged_step(step(other, noisy(1e-6), lr=1.1e-3), step()) == "origin"
    found = judged(step(other, noisy(1e-6), name="AdamW"), step(), History(started=True))
    assert "the reference has Optimizer.Adam in its place" in found.sentences()[0]


def test_a_wrong_gradient_makes_its_update_inherited() -> None:
    history = History(started=True, diverged=True)
    assert judged_step(step(off(SIGNS, 0.5), noisy(0.3)), step(), history) == "inherited"


def test_the_next_step_knows_how_far_a_parameter_was_left_apart() -> None:
    history = History(started=True, noise=1e-3)
    judged(step(off(SIGNS, 1e-2), noisy(1e-2), name="SGD"), step(name="SGD"), history)
    assert 0 < history.parameter_errors["parameters.up.weight"] < 1e-3
    assert history.parameter_errors["gradient.up.weight"] == pytest.approx(1e-2, rel=0.5)
    (left,) = history.optimizer_outputs.values()
    assert not left.wrong


def test_a_wrong_update_is_remembered_as_such() -> None:
    found = judged(step(SIGNS * np.float32(3)), step(), History(started=True))
    assert found.history.wrong_parameters == {"parameters.up.weight"}
    assert found.findings[0].slot == "output.up.weight"


def with_second(updates: bool) -> Script:
    """A step with a parameter whose slots one side alone may have, and that a module of both holds."""
    script = Script()
    script.call("Module.down.Linear.forward.0", {"input.0": GRADIENT, "parameters.weight": Q}, module="down")
    after = (P + np.float32(D) * SIGNS).astype(np.float32)
    given = {"parameters.up.weight": P}
    made = {"output.up.weight": after}
    if updates:
        given["parameters.down.weight"] = Q
        made["output.down.weight"] = (Q + np.float32(D)).astype(np.float32)
    script.call("Optimizer.Adam.step.0", given, made)
    return script


def test_a_parameter_that_one_side_alone_updates() -> None:
    """So is a parameter that one side alone updates; else the optimizer is named."""
    for target, who in ((True, "target"), (False, "reference")):
        found = judged(with_second(target), with_second(not target), History(started=True))
        assert found.sentences() == [f"Adam: only the {who} has down.weight among the parameters it updates"]
