"""Calls without inner calls: judged by what they did to the error that came in."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from numscope.compare.judge.findings import Inputs
from tests.unit.compare.judge.tables import Array, X, chain, data, judged, off
from tests.unit.compare.scripted import Script, numbers

G, H = numbers((16, 64), seed=3), numbers((16, 64), seed=4)


def test_an_output_that_is_wrong_though_its_inputs_were_right() -> None:
    """| origin | its output is wrong though its inputs were right |"""
    found = judged(chain(("Torch.tanh", off(G, 1e-3))), chain(("Torch.tanh", G)))
    assert found.verdict("Torch.tanh.0.forward") == "origin"
    assert found.sentences()[0].startswith("tanh: inputs identical, outputs differ by")


def test_an_error_that_follows_from_a_fault_excuses_nothing() -> None:
    """The `relu` above would pass by its own numbers (0.0019 against 0.013), but an error that follows from a fault excuses
    nothing."""
    target = chain(("Torch.tanh", off(G, 1e-3)), ("Torch.relu", off(H, 1e-3)))
    found = judged(target, chain(("Torch.tanh", G), ("Torch.relu", H)))
    assert found.verdict("Torch.relu.0.forward") == "inherited"
    assert len(found.findings) == 1


def test_right_again() -> None:
    """A tensor made from a wrong one is right again if it is as near as plain rounding: within the call's own rounding,
    without its cancellation, and 16 u at most (u is the [unit roundoff](rounding.md))."""
    target = chain(("Torch.tanh", off(G, 1e-3)), ("Torch.sigmoid", off(H, 1e-7)), ("Torch.exp", off(G, 1e-3, 8)))
    found = judged(target, chain(("Torch.tanh", G), ("Torch.sigmoid", H), ("Torch.exp", G)))
    assert found.verdict("Torch.sigmoid.0.forward") == "equivalent"
    assert found.verdict("Torch.exp.0.forward") == "origin"


def test_beside_the_origin() -> None:
    """A call that runs after the origin but reads nothing made from it is judged as if there were none."""

    def script(error: float) -> Script:
        made = chain(("Torch.tanh", off(G, error) if error else G))
        made.call("Torch.exp.0.forward", {"input.0": X}, {"output.0": off(H, error / 10) if error else H})
        return made

    found = judged(script(1e-3), script(0.0))
    assert found.verdict("Torch.exp.0.forward") == "origin"
    assert [one.target for one in found.findings] == [1, 2]


def with_arguments(eps: float, error: float) -> Script:
    made = off(G, error) if error else G
    script = data(Script(), X)
    script.call("Functional.layer_norm.0.forward", {"input.0": X}, {"output.0": made}, arguments={"eps": eps})
    return script


def test_an_argument_that_differs_takes_the_floor_away() -> None:
    """A float, a flag or a word that both sides give and that differs (`eps`, `approximate`, `is_causal`, `p`) takes the
    floor away: only the error that came in is an excuse."""
    assert judged(with_arguments(1e-5, 1e-7), with_arguments(1e-5, 0.0)).findings == []
    found = judged(with_arguments(1e-6, 2e-7), with_arguments(1e-5, 0.0))
    assert found.verdict("Functional.layer_norm.0.forward") == "origin"


@pytest.mark.parametrize(("wrong", "verdict"), [("factor", "origin"), ("noise", "equivalent")])
def test_a_factor_is_no_rounding(wrong: str, verdict: str) -> None:
    """Then a sixteenth of the floor is the limit."""
    given = numbers((64, 64))
    exact = numbers((64, 64), seed=3)

    def script(array: Array) -> Script:
        low = given.astype(ml_dtypes.bfloat16)
        return chain(("Torch.tanh", array.astype(ml_dtypes.bfloat16)), given=low)

    spoilt = exact * np.float32(1.003) if wrong == "factor" else off(exact, 0.002)
    assert judged(script(spoilt), script(exact)).verdict("Torch.tanh.0.forward") == verdict


def test_a_nan_on_one_side_alone_is_an_infinite_error() -> None:
    """NaN or infinity on one side alone is an infinite error."""
    bad = G.copy()
    bad[0, 0] = np.nan
    found = judged(chain(("Torch.tanh", bad)), chain(("Torch.tanh", G)))
    assert found.verdict("Torch.tanh.0.forward") == "origin"
    assert found.findings[0].relative == np.inf


def test_a_random_call_says_so() -> None:
    """Dropout and its like differ from the same inputs when the generators do; the sentence says so."""
    found = judged(chain(("Functional.dropout", X * (G > 0))), chain(("Functional.dropout", X * (H > 0))))
    assert found.findings[0].random


def test_a_call_that_is_given_the_right_tensor_by_other_calls_withdraws_their_suspicion() -> None:
    """Calls that changed places. A suspicion is withdrawn if the two ways meet again within 24 calls"""

    def script(first: bool) -> Script:
        made = data(Script(), X)
        half = (X if first else G) * np.float32(1)
        made.call("Torch.neg.0.forward" if first else "Torch.exp.0.forward", {"input.0": X}, {"output.0": half})
        made.call("Torch.tanh.0.forward", {"input.0": half}, {"output.0": H})
        made.call("Torch.sigmoid.0.forward", {"input.0": H}, {"output.0": G})
        return made

    assert judged(script(True), script(False)).findings == []


def created(values: Array, product: Array) -> Script:
    made = data(Script(), X)
    made.call("Torch.arange.0.forward", None, {"output.0": values}, arguments={"end": float(values.max())})
    made.call("Torch.mul.0.forward", {"input.0": X, "input.1": values}, {"output.0": product})
    return made


def test_numbers_from_nothing_are_judged_by_where_they_lead() -> None:
    """Tensors made from other arguments (`arange`) are judged by where they lead, too."""
    values = np.arange(64, dtype=np.float32)
    wrong = judged(created(values * 2, G), created(values, H))
    assert wrong.named() == "Torch.arange.0.forward"
    assert wrong.verdict("Torch.mul.0.forward") == "inherited"
    assert judged(created(values * 2, H), created(values, H)).findings == []


def outputs_only(*errors: float) -> Script:
    script = data(Script(), X)
    for number, error in enumerate(errors):
        exact = numbers((16, 64), seed=20 + number)
        script.call(f"Torch.tanh.{number}.forward", None, {"output.0": off(exact, error) if error else exact})
    return script


def test_without_inputs_what_ran_before_came_in() -> None:
    """After the first origin whatever is off is inherited."""
    found = judged(outputs_only(0.0, 1e-3, 1e-3), outputs_only(0.0, 0.0, 0.0))
    assert [found.verdict(f"Torch.tanh.{number}.forward") for number in range(3)] == [
        "identical",
        "origin",
        "inherited",
    ]
    assert found.findings[0].inputs is Inputs.UNRECORDED


def test_in_a_list_each_element_is_held_to_what_came_in_for_it() -> None:
    """In operators over lists, each element is held to what came in for it."""

    cancelled, small = numbers((64,), seed=30) * np.float32(1e-7), numbers((64,), seed=31)

    def script(error: float) -> Script:
        # What is nothing but rounding may be off by a tenth of itself: the largest error of the list.
        first = off(cancelled, 0.1) if error else cancelled
        made = data(Script(), X, small)
        made.call("Torch.sum.0.forward", {"input.0": X}, {"output.0": first})
        products = {"output.0": first * np.float32(2), "output.1": off(small, error) if error else small}
        made.call("Torch._foreach_mul.0.forward", {"input.0.0": first, "input.0.1": small}, products)
        return made

    assert judged(script(1e-7), script(0.0)).findings == []
    (finding,) = judged(script(1e-4), script(0.0)).findings
    assert finding.target == 3
    assert finding.relative == pytest.approx(1e-4, rel=0.5)


def test_a_cast_of_nearly_equal_numbers_may_round_a_few_the_other_way() -> None:
    given, low = numbers((64, 64)), numbers((64, 64)).astype(ml_dtypes.bfloat16)
    near = off(given, 2e-7)  # as a loader's own rounding leaves it
    other = near.astype(ml_dtypes.bfloat16)
    reference = chain(("Tensor.to", low), given=given)
    assert (other != low).any()
    assert judged(chain(("Tensor.to", other), given=near), reference).findings == []
    (finding,) = judged(chain(("Tensor.to", off(low, 1e-2)), given=near), reference).findings
    assert finding.relative > 5e-3


@pytest.mark.parametrize(
    ("target", "reference", "verdict"),
    [
        ({"approximate": "none"}, {}, "equivalent"),  # torch's default
        ({"approximate": "tanh"}, {}, "origin"),
        ({"unheard_of": 0.5}, {}, "equivalent"),
    ],
)
def test_an_argument_that_one_side_alone_gives(
    target: dict[str, str | float], reference: dict[str, str | float], verdict: str
) -> None:
    """An argument that one side alone gives is held against torch's default where that is known (gelu, norms, losses,
    attention). Otherwise it is shown and proves nothing."""

    def script(arguments: dict[str, str | float], made: Array) -> Script:
        script = data(Script(), X)
        script.call("Functional.gelu.0.forward", {"input.0": X}, {"output.0": made}, arguments=arguments)
        return script

    found = judged(script(target, off(G, 1e-7)), script(reference, G))
    assert found.verdict("Functional.gelu.0.forward") == verdict


def test_a_dtype_argument_is_no_difference_by_itself() -> None:
    """A dtype argument is no difference by itself; what it changes shows in the outputs."""

    def script(dtype: str, made: Array) -> Script:
        script = data(Script(), X)
        script.call("Torch.softmax.0.forward", {"input.0": X}, {"output.0": made}, arguments={"dtype": dtype})
        return script

    assert judged(script("torch.float64", off(G, 1e-7)), script("torch.float32", G)).findings == []


def test_a_collective_that_gives_something_else_for_the_same_brings_what_another_rank_gave() -> None:
    """One that is given the same and gives something else brings what another rank gave it"""
    found = judged(chain(("Distributed.all_reduce", off(G, 0.1))), chain(("Distributed.all_reduce", G)))
    assert found.verdict("Distributed.all_reduce.0.forward") == "origin"
    assert "other rank" in found.sentences()[0]


def test_a_call_whose_result_is_the_same_is_not_blamed_for_a_cast_behind_it() -> None:
    # The mask hides how far apart the softmax's inputs are: one is cast, to the same numbers.
    masked = np.where(numbers((16, 64), seed=9) > 0, G, -3e38).astype(ml_dtypes.bfloat16)
    shares = np.exp(G) / np.exp(G).sum()
    target = chain(("Tensor.masked_fill", masked), ("Tensor.softmax", shares.astype(ml_dtypes.bfloat16)))
    reference = chain(
        ("Tensor.masked_fill", masked), ("Tensor.float", masked.astype(np.float32)), ("Tensor.softmax", shares)
    )
    assert judged(target, reference).named() == "Tensor.softmax.0.forward"
