"""Calls with inner calls."""

from __future__ import annotations

import numpy as np

from tests.unit.compare.judge.tables import X, data, judged, off
from tests.unit.compare.scripted import Script, numbers

G, H = numbers((16, 64), seed=3), numbers((16, 64), seed=4)


def composite(inner: float, outer: float) -> Script:
    """A module whose function is off by `inner`, and whose own output by `outer`."""
    script = data(Script(), X)
    made = off(G, inner) if inner else G
    own = off(H, outer) if outer else H
    module = script.call("Module.up.Up.forward.0", {"input.0": X}, {"output.0": own}, module="up", module_class="Up")
    script.call("Torch.tanh.0.forward", {"input.0": X}, {"output.0": made}, module="up", parent=module)
    return script


def test_a_call_whose_inner_calls_agree_and_that_does_not_is_an_origin() -> None:
    """A call with inner calls is an origin only if its inner calls agree and it does not: a gradient added on top of an old
    one, a tied weight that was untied."""
    found = judged(composite(0.0, 1e-3), composite(0.0, 0.0))
    assert found.named() == "Module.up.Up.forward.0"
    assert found.sentences()[0].endswith("its inner calls agree")


def test_a_call_whose_inner_call_is_the_origin_follows() -> None:
    found = judged(composite(1e-3, 1e-3), composite(0.0, 0.0))
    assert found.named() == "Torch.tanh.0.forward"
    assert found.verdict("Module.up.Up.forward.0") == "inherited"


def test_a_call_may_add_rounding_to_that_of_its_inner_calls() -> None:
    """It may add 32 u, and 32 times the largest error of its inner calls."""
    assert judged(composite(1e-7, 3e-6), composite(0.0, 0.0)).findings == []
    assert judged(composite(1e-7, 5e-5), composite(0.0, 0.0)).named() == "Module.up.Up.forward.0"


def test_a_call_that_returns_what_an_inner_call_made_is_as_right_as_that() -> None:
    """What an inner call made is as right as that call."""

    def script(error: float) -> Script:
        made = data(Script(), X)
        output = off(G, error) if error else G
        module = made.call("Module.up.Up.forward.0", {"input.0": X}, {"output.0": output}, module="up")
        made.call("Torch.tanh.0.forward", {"input.0": X}, {"output.0": output}, module="up", parent=module)
        return made

    assert judged(script(1e-7), script(0.0)).verdict("Module.up.Up.forward.0") == "equivalent"
    found = judged(script(1e-3), script(0.0))
    assert found.verdict("Module.up.Up.forward.0") == "inherited"
    assert len(found.findings) == 1


def test_a_call_that_is_given_something_else_is_judged_by_where_it_leads() -> None:
    def script(wide: bool) -> Script:
        given = np.concatenate([X, X]) if wide else X
        made = data(Script(), X)
        made.call("Torch.cat.0.forward", {"input.0": X}, {"output.0": given})
        module = made.call("Module.up.Up.forward.0", {"input.0": given}, {"output.0": H}, module="up")
        made.call("Torch.tanh.0.forward", {"input.0": given}, {"output.0": G}, module="up", parent=module)
        return made

    found = judged(script(True), script(False))
    assert not any(one.pair == 2 for one in found.findings)
