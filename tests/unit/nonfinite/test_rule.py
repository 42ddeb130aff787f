"""The rule that tells an origin from what is inherited and from what somebody meant."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numscope.nonfinite.rule import MAKES, UNWRITTEN, Counts, Value, is_mask, judge

CLEAN = Counts(elements=8)
NAN = Counts(nan=1, elements=8)
UP = Counts(posinf=1, elements=8)
DOWN = Counts(neginf=2, elements=8)
LOW = Counts(elements=8, low=True)

counts = st.builds(Counts, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.just(8), st.booleans())
states = st.sampled_from(["meant", "wrong", "constant", "blank", "parameter", "unknown"])
values = st.lists(st.builds(Value, st.just("input.0"), counts, states), max_size=4)
results = st.lists(st.builds(Value, st.sampled_from(["output.0", "output.1"]), counts), min_size=1, max_size=3)
ops = st.sampled_from(["exp", "add", "mul", "softmax", "masked_fill", "where", "full", "empty", "__rsub__", "div_"])
numbers = st.lists(st.sampled_from([0.0, 1.0, math.inf, -math.inf]), max_size=2)


def answer(op: str, inputs: list[Value], output: Counts, constants: tuple[float, ...] = ()) -> str:
    return judge(op, inputs, [Value("output.0", output)], constants).answer


def meant(what: Counts) -> Value:
    return Value("input.0", what, "meant")


@given(ops, values, results, numbers)
def test_a_finite_result_is_never_anything(
    op: str, inputs: list[Value], outputs: list[Value], given: list[float]
) -> None:
    finite = [Value(value.slot, CLEAN) for value in outputs]
    assert judge(op, inputs, finite, given).answer == "ignored"


@given(ops, values, results, numbers)
def test_the_answer_does_not_hang_on_the_order_of_tensors(
    op: str, inputs: list[Value], outputs: list[Value], given: list[float]
) -> None:
    there = judge(op, inputs, outputs, given).answer
    back = judge(op, inputs[::-1], outputs[::-1], given[::-1]).answer
    # A constant of NaN and something from outside are both to be explained: which is named first is a matter of order.
    assert there == back or {there, back} == {"origin", "entered"}


@given(ops.filter(lambda op: op not in MAKES | UNWRITTEN), results, numbers)
def test_a_nan_out_of_finite_inputs_is_an_origin(op: str, outputs: list[Value], given: list[float]) -> None:
    result = judge(op, [Value("input.0", CLEAN)], [*outputs, Value("output.9", NAN)], given)
    assert result.answer == "origin"
    assert result.cause is None
    assert result.output is not None
    assert result.output.counts.nan


@given(ops.filter(lambda op: op not in UNWRITTEN), values, results, numbers)
def test_what_was_wrong_already_is_inherited(
    op: str, inputs: list[Value], outputs: list[Value], given: list[float]
) -> None:
    wrong = Value("input.7", NAN, "wrong")
    result = judge(op, [*inputs, wrong], [*outputs, Value("output.9", NAN)], given)
    assert result.answer == "inherited"
    assert result.cause is not None
    assert result.cause.state == "wrong"


@given(counts, numbers)
def test_memory_that_nobody_wrote_is_not_judged(made: Counts, given: list[float]) -> None:
    assert answer("empty_like", [], made, tuple(given)) == "ignored"


@given(counts.filter(lambda item: not item.clean))
def test_an_infinity_goes_on_with_its_sign_alone(out: Counts) -> None:
    expected = "origin" if out.nan or out.posinf else "meant"
    assert answer("relu", [meant(DOWN)], out) == expected


@pytest.mark.parametrize(
    ("op", "inputs", "constants", "output", "expected"),
    [
        # finite inputs
        ("exp", [Value("input.0", CLEAN)], (), UP, "origin"),
        ("log", [Value("input.0", CLEAN)], (), DOWN, "origin"),
        # asked for by an argument
        ("masked_fill", [Value("input.0", CLEAN)], (-math.inf,), DOWN, "meant"),
        ("masked_fill", [Value("input.0", CLEAN)], (-math.inf,), UP, "origin"),
        ("masked_fill", [Value("input.0", CLEAN)], (-math.inf,), NAN, "origin"),
        ("clamp", [Value("input.0", CLEAN)], (-1.0, math.inf), UP, "meant"),
        # made out of constants
        ("full", [], (-math.inf,), DOWN, "meant"),
        ("tensor", [], (), NAN, "constant"),
        ("full_like", [Value("input.0", NAN, "wrong")], (0.0,), NAN, "inherited"),
        # a mask goes into a sum, a softmax, a product
        ("add", [Value("input.0", CLEAN), meant(DOWN)], (), DOWN, "meant"),
        ("softmax", [meant(DOWN)], (), NAN, "origin"),
        ("mul", [meant(DOWN)], (), UP, "meant"),
        ("__rsub__", [meant(DOWN)], (), UP, "meant"),
        ("sigmoid", [meant(DOWN)], (), UP, "origin"),
        # a mask of the smallest number overflows in a sum, and only there
        ("add", [Value("input.0", LOW)], (), DOWN, "meant"),
        ("add", [Value("input.0", LOW)], (), UP, "origin"),
        ("mul", [Value("input.0", LOW)], (), DOWN, "origin"),
        ("scaled_dot_product_attention", [Value("kwargs.attn_mask", LOW)], (), DOWN, "meant"),
        # from outside
        ("add", [Value("input.0", DOWN)], (), DOWN, "meant"),
        ("add", [Value("input.0", UP)], (), UP, "entered"),
        ("add", [Value("input.0", NAN)], (), NAN, "entered"),
        ("linear", [Value("input.1", DOWN, "parameter")], (), DOWN, "entered"),
        ("add", [Value("input.1", DOWN, "parameter")], (), DOWN, "meant"),
        ("add", [Value("input.1", NAN, "parameter")], (), NAN, "entered"),
        ("add", [Value("input.0", NAN, "blank")], (), NAN, "entered"),
        # a constant does no harm before something takes it
        ("where", [Value("input.2", NAN, "constant")], (), NAN, "origin"),
        ("expand", [Value("input.0", NAN, "constant")], (), NAN, "constant"),
        ("clone", [Value("input.0", NAN, "constant")], (), NAN, "constant"),
        ("where", [Value("input.2", NAN, "constant")], (), CLEAN, "ignored"),
    ],
)
def test_the_table_of_the_rule(
    op: str, inputs: list[Value], constants: tuple[float, ...], output: Counts, expected: str
) -> None:
    assert answer(op, inputs, output, constants) == expected


@given(counts)
def test_counts_say_what_they_hold(item: Counts) -> None:
    text = str(item)
    assert text.endswith("of 8 elements")
    assert ("NaN" in text) == bool(item.nan)
    assert ("+inf" in text) == bool(item.posinf)
    assert ("-inf" in text) == bool(item.neginf)
    assert item.clean == ("nothing" in text)
    assert is_mask(item) == (not item.nan and not item.posinf)
