"""Two arguments have the same key only if they are described alike."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from numscope.capture.arguments import describe, key_of

numbers = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.0, -0.0, 1.0, float("nan")]))
slices = st.builds(slice, st.none() | st.integers(-2, 2), st.none() | st.integers(-2, 2), st.none() | st.integers(1, 2))
simple = st.one_of(numbers, st.sampled_from(["", "a", "[1]", "..."]), slices, st.just(...))
values = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    ),
    max_leaves=8,
)


def text(value: Any) -> str:
    return json.dumps(describe(value), sort_keys=True)


@given(values, values)
def test_equal_keys_of_one_type_are_described_alike(one: Any, other: Any) -> None:
    if type(one) is type(other) and key_of(one) == key_of(other):
        assert text(one) == text(other)


@given(values)
def test_a_key_is_the_same_each_time_and_can_be_hashed(value: Any) -> None:
    assert key_of(value) == key_of(value)
    assert hash(key_of(value)) == hash(key_of(value))


def test_a_list_that_holds_itself_has_a_key() -> None:
    value: list[Any] = [1.5]
    value.append(value)
    assert hash(key_of(value)) is not None
