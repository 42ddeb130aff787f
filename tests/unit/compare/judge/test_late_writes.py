"""Calls that write to a parameter after the optimizer."""

from __future__ import annotations

from dataclasses import replace

from numscope.compare.judge.findings import History
from numscope.compare.judge.rules.late_writes import late_writes
from numscope.core.report import Origin
from tests.unit.compare.judge.tables import Array, X, facts_of, judged, off
from tests.unit.compare.scripted import Script, numbers

P, AFTER = numbers((64, 32), seed=3), numbers((64, 32), seed=4)


def step(name: str = "", before: Array = P) -> Script:
    """A step of an optimizer, and a call on the parameter after it."""
    script = Script()
    held = {"input.0": X, "parameters.weight": before}
    script.call("Module.up.Linear.forward.0", held, {"output.0": X @ numbers((64, 8), seed=5)}, module="up")
    script.call("Optimizer.Adam.step.0", {"parameters.up.weight": before}, {"output.up.weight": AFTER})
    if name:
        script.call(name, {"input.0": AFTER}, {"output.0": AFTER * 2})
    return script


def test_a_call_of_one_side_alone_that_writes_to_a_parameter() -> None:
    """So is, for one step, a call that one side alone has and that writes to a parameter after the optimizer: weights that
    are rounded or clamped."""
    found = late_writes(facts_of(step("Tensor.clamp_.0.forward"), step()))
    assert set(found) == {"parameters.up.weight"}
    assert found["parameters.up.weight"].target == 2
    missing = late_writes(facts_of(step(), step("Tensor.clamp_.0.forward")))
    assert missing["parameters.up.weight"].reference == 2


def test_a_call_that_writes_nothing_is_not_remembered() -> None:
    assert late_writes(facts_of(step("Tensor.clamp.0.forward"), step())) == {}


def test_a_call_that_both_sides_have_is_not_remembered() -> None:
    assert late_writes(facts_of(step("Tensor.clamp_.0.forward"), step("Tensor.clamp_.0.forward"))) == {}


def test_the_write_is_named_when_the_next_step_shows_it() -> None:
    first = judged(step("Tensor.clamp_.0.forward"), step(), History())
    assert set(first.history.late_writes) == {"parameters.up.weight"}
    kept = first.history.late_writes["parameters.up.weight"]
    # Its rows mean nothing in the next step, so that it is put into words before.
    ready = Origin("Tensor.clamp_.0.forward", "extra", "forward", 0, 0, "only the target has this call")
    first.history.late_writes["parameters.up.weight"] = replace(kept, ready=ready)
    found = judged(step(before=off(P, 0.1)), step(), first.history)
    assert [one.ready for one in found.findings] == [ready]
