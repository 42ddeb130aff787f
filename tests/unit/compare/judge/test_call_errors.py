"""The error that rounding explains at each pair of calls of two steps written by hand."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from numscope.compare.align.alignment import align
from numscope.compare.align.slots import pair_slots
from numscope.compare.judge.rounding.accuracy import measured
from numscope.compare.judge.rounding.call_errors import CallErrors, call_errors
from numscope.compare.load.side import Codebook
from numscope.compare.measure.measures import RESOLUTION, measure
from numscope.core.dtypes import SINGLE, unit_roundoff
from numscope.core.operators import Rounding
from tests.unit.compare.scripted import Script, numbers

GELU = 2 * measured().of("gelu", Rounding.LIPSCHITZ, backward=False, narrow=False)  # both sides round
BF16 = unit_roundoff("bfloat16")
X, G = numbers((32, 32)), numbers((32, 32), seed=1)


def off(array: NDArray[Any], error: float, seed: int = 5) -> NDArray[Any]:
    """Return an array with a relative error."""
    noise = numbers(array.shape, seed).astype(np.float64)
    scaled = noise * (error * np.linalg.norm(array.astype(np.float64)) / np.linalg.norm(noise))
    return (array.astype(np.float64) + scaled).astype(array.dtype)


def errors(target: Script, reference: Script, two_precisions: bool = False) -> CallErrors:
    book = Codebook()
    a, b = target.side(book), reference.side(book)
    alignment = align(a, b)
    slots = pair_slots(a, b, alignment)
    return call_errors(a, b, alignment, slots, measure(a, b, slots.a, slots.b), two_precisions)


def one_call(name: str, given: NDArray[Any], made: NDArray[Any], **options: Any) -> Script:
    script = Script()
    script.call(name, {"input.0": given}, {"output.0": made}, **options)
    return script


def forward_and_backward(op: str, error: float) -> Script:
    script = Script()
    forward = script.call(
        f"Functional.{op}.0.forward", {"input.0": off(X, error)}, {"output.0": off(np.maximum(X, 0), error)}
    )
    script.call(f"Functional.{op}.0.backward", {"input.0": G}, {"output.0": G * (X > 0)}, forward=forward)
    return script


def test_the_same_calls_have_no_errors() -> None:
    found = errors(one_call("Functional.gelu.0.forward", X, G), one_call("Functional.gelu.0.forward", X, G))
    assert found.identical.tolist() == [True]
    assert found.error_out.tolist() == [0.0]
    assert found.name == ["gelu"]
    assert found.operator.tolist() == [Rounding.LIPSCHITZ]
    assert found.floor[0] == pytest.approx(GELU * SINGLE)


def test_a_bit_that_no_sketch_shows_is_below_its_resolution() -> None:
    """Relative errors are estimated from sketches, to within 40 %, and cannot be seen below 1.5e-8."""
    other = G.copy()
    other[0, 0] = np.nextafter(other[0, 0], np.float32(9))
    found = errors(one_call("Functional.gelu.0.forward", X, other), one_call("Functional.gelu.0.forward", X, G))
    assert found.estimated.tolist() == [True]
    assert found.floor[0] == pytest.approx(GELU * SINGLE + 4 * RESOLUTION)


def test_the_error_that_came_in_is_carried() -> None:
    given = off(X, 1e-3)
    found = errors(one_call("Tensor.exp.0.forward", given, G), one_call("Tensor.exp.0.forward", X, G))
    assert found.error_in[0] == pytest.approx(1e-3, rel=0.5)
    assert found.expected[0] == pytest.approx(found.floor[0] + found.gain[0] * found.error_in[0])


def test_a_kink_lets_out_the_root_of_an_error() -> None:
    """A relative error e flips about e of the elements, so 6 √e is explained."""
    found, smooth = (errors(forward_and_backward(op, 1e-4), forward_and_backward(op, 0.0)) for op in ("relu", "selu"))
    assert found.expected[1] > 6 * np.sqrt(found.error_in[0])
    assert smooth.expected[1] < 0.01 < found.expected[1]


def test_a_backward_call_carries_the_error_of_its_forward_call() -> None:
    """A backward call also carries the error of what its forward call was given and made."""
    found = errors(forward_and_backward("selu", 1e-4), forward_and_backward("selu", 0.0))
    assert found.error_in[1] == 0
    assert found.expected[1] > found.floor[1] + 24 * 0.5e-4


@pytest.mark.parametrize("given", ["integers", "bools"])
def test_a_discrete_input_that_flipped_explains_anything(given: str) -> None:
    chosen = np.arange(64) % 7 if given == "integers" else np.arange(64) % 2 > 0
    other = np.roll(chosen, 1)
    found = errors(one_call("Tensor.gather.0.forward", other, G), one_call("Tensor.gather.0.forward", chosen, X))
    assert found.discrete_in.tolist() == [True]
    assert found.expected.tolist() == [np.inf]


def test_a_discrete_output_flips_only_where_an_error_came_in() -> None:
    order, other = np.arange(64), np.roll(np.arange(64), 1)
    same = errors(one_call("Tensor.argsort.0.forward", X, other), one_call("Tensor.argsort.0.forward", X, order))
    assert same.expected[0] < np.inf
    moved = errors(
        one_call("Tensor.argsort.0.forward", off(X, 1e-6), other), one_call("Tensor.argsort.0.forward", X, order)
    )
    assert moved.expected[0] == np.inf


def test_a_call_of_two_dtypes_is_held_to_the_finer_unless_the_runs_are_of_two_precisions() -> None:
    def linear(dtype: Any) -> Script:
        return one_call("Functional.linear.0.forward", X, (X @ G).astype(dtype))

    one, two = (errors(linear(ml_dtypes.bfloat16), linear(np.float32), precisions) for precisions in (False, True))
    assert one.roundoff[0] == SINGLE
    assert two.roundoff[0] == BF16
    assert two.floor[0] >= 4 * BF16
    assert one.error_out[0] > one.expected[0]
    assert two.error_out[0] < two.expected[0]


def test_a_module_rounds_as_its_operator() -> None:
    script = one_call("Module.norm.LayerNorm.forward.0", X, G, module="norm", module_class="LayerNorm")
    found = errors(script, script)
    assert found.name == ["layer_norm"]
    assert found.operator.tolist() == [Rounding.NORMALISE]


def test_a_collective_rounds_as_a_sum_over_ranks() -> None:
    script = one_call("Distributed.all_reduce.0.forward", X, G, kind="collective")
    assert errors(script, script).operator.tolist() == [Rounding.COMMUNICATE]
