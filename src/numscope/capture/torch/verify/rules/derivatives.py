"""Backward of elementwise operators: the operator's own derivative in float64, on the same sample."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numscope.capture.torch.verify.lens import Array
from numscope.capture.torch.verify.rules.elementwise import (
    ROOT_2,
    ROOT_2_PI,
    Elementwise,
    Formula,
    Values,
    elementwise,
    erf,
    sigmoid,
    softplus,
)
from numscope.capture.torch.verify.rules.registry import add_rule


def _of(slope: Formula, steep: Formula | None = None) -> Elementwise:
    """Return the rule for a gradient times a slope; `steep`: the size of what the slope is made of."""
    size = None if steep is None else lambda v: np.abs(v["grad_output"]) * steep(v)
    return Elementwise(lambda v: v["grad_output"] * slope(v), size, True)


def _gelu(v: Values) -> Any:
    x = v["self"]
    if v["approximate"] == "tanh":
        inner = ROOT_2_PI * (x + 0.044715 * x**3)
        tanh = np.tanh(inner)
        return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * ROOT_2_PI * (1 + 3 * 0.044715 * x**2)
    return 0.5 * (1 + erf(x / ROOT_2)) + x * np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)


def _silu(v: Values) -> Any:
    share = sigmoid(v["self"])
    return share * (1 + v["self"] * (1 - share))


def _mish(v: Values) -> Any:
    x: Array = v["self"]
    tanh = np.tanh(softplus(x))
    return tanh + x * sigmoid(x) * (1 - tanh**2)


def _elu(v: Values) -> Any:
    x, scale, alpha, inner = v["self_or_result"], v["scale"], v["alpha"], v["input_scale"]
    below = (x + alpha * scale) * inner if v["is_result"] else inner * alpha * scale * np.exp(x * inner)
    return np.where(x <= 0, below, scale)


def _hardswish(v: Values) -> Any:
    x = v["self"]
    return np.where(x <= -3, 0.0, np.where(x < 3, x / 3 + 0.5, 1.0))


_TABLE = {
    "gelu_backward": _of(_gelu, lambda v: 1 + np.abs(v["self"])),
    "silu_backward": _of(_silu, lambda v: 1 + np.abs(v["self"])),
    "mish_backward": _of(_mish, lambda v: 1 + np.abs(v["self"])),
    "tanh_backward": _of(lambda v: 1 - v["output"] ** 2, lambda v: 1.0),
    "sigmoid_backward": _of(lambda v: (1 - v["output"]) * v["output"], lambda v: np.abs(v["output"])),
    "threshold_backward": _of(lambda v: v["self"] > v["threshold"]),
    "leaky_relu_backward": _of(lambda v: np.where(v["self"] > 0, 1.0, v["negative_slope"])),
    "hardtanh_backward": _of(lambda v: (v["self"] > v["min_val"]) & (v["self"] < v["max_val"])),
    "hardsigmoid_backward": _of(lambda v: np.where(np.abs(v["self"]) < 3, 1 / 6, 0.0), lambda v: 1 / 6),
    "hardswish_backward": _of(_hardswish, lambda v: 1.0),
    "elu_backward": _of(_elu, lambda v: 1 + np.abs(v["self_or_result"])),
    "softplus_backward": _of(
        lambda v: np.where(v["self"] * v["beta"] > v["threshold"], 1.0, sigmoid(v["self"] * v["beta"])),
        lambda v: 1 + np.abs(v["self"]),
    ),
    "log_sigmoid_backward": _of(lambda v: sigmoid(-v["self"]), lambda v: 1 + np.abs(v["self"])),
}
for _name, _function in _TABLE.items():
    add_rule(_name, elementwise(_function))
