"""Paddle's arguments become torch's, by place and by name; what only one side has is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from numscope.compare.align.arguments import differences
from numscope.compare.load.paddle_words import arguments, settings


def given(*args: Any, **kwargs: Any) -> str:
    return json.dumps({"args": {str(place): value for place, value in args}, "kwargs": kwargs})


@pytest.mark.parametrize(
    ("op", "paddle", "torch", "telling"),
    [
        ("layer_norm", given(epsilon=1e-5), given((1, [8]), (4, 1e-5)), False),
        ("layer_norm", given(epsilon=1e-6), given((1, [8]), (4, 1e-5)), True),
        ("group_norm", given((1, 4), (2, 1e-5)), given((1, 4), eps=1e-5), False),
        ("gelu", given(approximate=False), given(), False),
        ("gelu", given((1, True)), given(approximate="tanh"), False),
        ("dropout", given((1, 0.5), training=True), given(p=0.5, training=True, inplace=False), False),
        ("dropout", given((1, 0.5)), given((1, 0.1)), True),
        ("batch_norm", given(momentum=0.9, epsilon=1e-5), given((6, 0.1), (7, 1e-5)), False),
        ("cross_entropy", given((4, "sum")), given(reduction="sum", ignore_index=-100, label_smoothing=0.0), False),
        ("mul", given((1, 2.0)), given((1, 4.0)), True),
        ("scatter", given((1, 2.0)), given((1, 4.0)), False),
    ],
)
def test_arguments_that_mean_the_same_do_not_differ(op: str, paddle: str, torch: str, telling: bool) -> None:
    found = differences(arguments(paddle, op, True), arguments(torch, op, False), op)
    assert any(difference.telling for difference in found) == telling, found
    assert telling or not found


def test_an_optimizer_s_settings_are_those_that_both_have() -> None:
    paddle = json.dumps({"kwargs": {"0": {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "rescale_grad": 1}}})
    torch = json.dumps({"kwargs": {"0": {"lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "foreach": None}}})
    found = differences(settings(paddle, True), settings(torch, False))
    assert [str(difference) for difference in found] == ["0.betas.1: 0.99 against 0.999"]
