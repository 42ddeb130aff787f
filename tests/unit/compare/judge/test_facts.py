"""The facts of a step before it is judged."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from numscope.compare.judge.facts import gather_facts
from numscope.compare.judge.rounding.precisions import Precisions
from numscope.core.dtypes import SINGLE, unit_roundoff
from tests.unit.compare.judge.tables import Array, X, chain, data, facts_of, off
from tests.unit.compare.scripted import Script, numbers

BF16 = unit_roundoff("bfloat16")
G = numbers((16, 64), seed=3)


def test_noise_runs_explain_four_times_what_they_show() -> None:
    """What it shows at this very call, times four, is explained too."""
    facts = facts_of(chain(("Torch.tanh", G)), chain(("Torch.tanh", G)))
    noise = np.array([0.0, 1e-3])
    loose = gather_facts(facts.a, facts.b, facts.alignment, facts.slots, facts.measures, noise=noise)
    assert loose.limits[1] == pytest.approx(4e-3)
    assert facts.limits[1] < 1e-5


def test_the_user_s_factor_widens_every_limit() -> None:
    facts = facts_of(chain(("Torch.tanh", G)), chain(("Torch.tanh", G)))
    wide = gather_facts(facts.a, facts.b, facts.alignment, facts.slots, facts.measures, scale=3.0)
    np.testing.assert_allclose(wide.limits, 3.0 * facts.limits)


def test_a_multiple_of_the_result_is_a_scaled_error() -> None:
    """ "Multiple" means a correlation with the result beyond chance for so many elements."""
    made = numbers((64, 64), seed=3)
    factor = facts_of(chain(("Torch.tanh", made * np.float32(1.01))), chain(("Torch.tanh", made)))
    noise = facts_of(chain(("Torch.tanh", off(made, 0.01))), chain(("Torch.tanh", made)))
    (row,) = factor.made(1)
    assert factor.scaled_error(row) == pytest.approx(0.01, rel=0.2)
    assert noise.scaled_error(row) == 0.0


def test_a_constant_tensor_tells_nothing() -> None:
    constant = np.ones((16, 64), np.float32)
    facts = facts_of(chain(("Torch.tanh", constant)), chain(("Torch.tanh", constant)))
    given, made = facts.rows(1)
    assert facts.is_telling(given)
    assert not facts.is_telling(made)


def test_the_coarser_roundoff_counts_between_two_precisions_alone() -> None:
    """If more than 30 % of the products, or of the parameters, differ in dtype, the runs are of two precisions, and u is
    that of the coarser one."""
    coarse, fine = chain(("Torch.tanh", G.astype(ml_dtypes.bfloat16))), chain(("Torch.tanh", G))
    one = facts_of(coarse, fine)
    two = facts_of(coarse, fine, Precisions("bfloat16", "float32"))
    (row,) = one.made(1)
    assert one.roundoff(*one.tensors(row)) == SINGLE
    assert two.roundoff(*two.tensors(row)) == BF16
    assert two.same_result > one.same_result


def test_small_numbers_of_float16_round_to_multiples() -> None:
    """Below fp16's smallest normal, numbers round to multiples of 6e-8; that is added."""
    tiny = (G * np.float32(1e-6)).astype(np.float16)
    facts = facts_of(chain(("Torch.tanh", tiny)), chain(("Torch.tanh", tiny)))
    (row,) = facts.made(1)
    assert facts.roundoff(*facts.tensors(row)) > 10 * unit_roundoff("float16")


def outputs_only(made: Array) -> Script:
    script = data(Script(), X)
    script.call("Torch.tanh.0.forward", None, {"output.0": made})
    return script


def test_the_inputs_of_runs_of_outputs_alone_are_hidden() -> None:
    """What came in is taken to be what ran before: the largest error that rounding explained so far."""
    facts = facts_of(outputs_only(G), outputs_only(G))
    assert facts.inputs_unrecorded
    assert not facts.hides_inputs(0)  # data
    assert facts.hides_inputs(1)
    assert facts.limits[1] >= 2 * facts_of(chain(("Torch.tanh", G)), chain(("Torch.tanh", G))).limits[1] / 2


def test_a_call_of_the_reference_alone_has_a_place_in_the_target_s_order() -> None:
    reference = chain(("Torch.tanh", G), ("Torch.exp", X), ("Torch.relu", G))
    target = chain(("Torch.tanh", G), ("Torch.relu", G))
    facts = facts_of(target, reference)
    _, other = facts.sides
    assert other.lone_calls.tolist() == [2]
    assert facts.place_of_reference(2) == 1.5
    assert other.lone(2).reference == 2


def test_a_limit_grows_where_the_target_is_larger() -> None:
    """Where the target's norm is larger, the limit grows by their ratio"""
    same = facts_of(chain(("Torch.tanh", G)), chain(("Torch.tanh", G)))
    larger = facts_of(chain(("Torch.tanh", G * np.float32(100))), chain(("Torch.tanh", G)))
    assert larger.limits[1] == pytest.approx(100 * same.limits[1], rel=0.01)


def test_sources_are_judged_by_themselves() -> None:
    """Sources (`arange`, `randn`, data) have no inputs and are judged by themselves."""

    def script() -> Script:
        made = outputs_only(G)
        made.call("Torch.arange.0.forward", None, {"output.0": np.arange(16, dtype=np.float32)})
        return made

    facts = facts_of(script(), script())
    assert [facts.hides_inputs(pair) for pair in range(3)] == [False, True, False]
