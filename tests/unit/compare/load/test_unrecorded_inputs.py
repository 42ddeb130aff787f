"""Runs of outputs alone."""

from __future__ import annotations

import numpy as np

from numscope.compare.load.side import Codebook
from numscope.compare.load.unrecorded_inputs import is_source, loosened, records_inputs
from numscope.core.dtypes import unit_roundoff
from numscope.core.operators import Rounding
from tests.unit.compare.scripted import Script, numbers

X = numbers((4, 8))


def test_a_run_records_inputs_unless_no_call_that_has_any_shows_one() -> None:
    given, outputs, sources = Script(), Script(), Script()
    given.call("Torch.tanh.0.forward", {"input.0": X}, {"output.0": X + 1})
    outputs.call("Torch.tanh.0.forward", None, {"output.0": X + 1})
    for name in ("arange", "randn"):
        sources.call(f"Torch.{name}.0.forward", None, {"output.0": X + 1})
    sides = [script.side(Codebook()) for script in (given, outputs, sources)]
    assert [records_inputs(side) for side in sides] == [True, False, True]
    assert is_source(sides[2], 0)
    assert not is_source(sides[1], 0)


def test_limits_without_inputs_are_wider() -> None:
    """The call's own rounding is allowed two to four times as much, because the sizes of its inputs are not known."""
    operators = np.array([Rounding.PRODUCT, Rounding.PRODUCT, Rounding.CREATE])
    u = np.array([unit_roundoff("float32"), unit_roundoff("bfloat16"), unit_roundoff("float32")])
    limits = np.array([1e-3, 1.0, 1e-3])
    widened = loosened(limits, operators, u)
    np.testing.assert_allclose(widened / limits, [4.0, 2.0, 1.0], rtol=0.01)
