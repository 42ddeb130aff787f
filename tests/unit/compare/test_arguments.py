"""Non-tensor arguments of two calls: what differs, and nothing else."""

from __future__ import annotations

import json

from numscope.compare.align.arguments import differences


def test_an_argument_given_on_one_side_alone_is_the_only_difference() -> None:
    target = json.dumps({"kwargs": {"approximate": "tanh"}})
    found = differences(target, None)
    assert [difference.name for difference in found] == ["approximate"]


def test_equal_arguments_do_not_differ() -> None:
    text = json.dumps({"args": {"1": [4, 8], "2": 1e-5}, "kwargs": {"eps": 1e-6}})
    assert differences(text, text) == []


def test_an_argument_that_is_not_given_is_its_default() -> None:
    given = json.dumps({"kwargs": {"approximate": "tanh"}})
    plain = json.dumps({"kwargs": {"approximate": "none"}})
    assert [difference.telling for difference in differences(given, None, "gelu")] == [True]
    assert differences(plain, None, "gelu") == []
    assert [difference.telling for difference in differences(given, None, "other")] == [False]


def test_a_position_does_not_run_into_its_value() -> None:
    (found,) = differences('{"args": {"4": 0.001}}', '{"args": {"4": 1e-05}}')
    assert str(found) == "4: 0.001 against 1e-05"
