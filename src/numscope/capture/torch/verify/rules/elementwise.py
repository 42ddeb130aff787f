"""Operators that compute each element for itself: the same function in float64, on a lattice and on a block of neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from numscope.capture.torch.verify.lens import Array, Box, Read, is_readable, spread
from numscope.capture.torch.verify.measure import Compared, deviation
from numscope.capture.torch.verify.rules.registry import NotVerifiedError, OperatorCall, Rule, Steps, add_rule, dtype_of
from numscope.capture.torch.verify.sampling import Sampling
from numscope.core.dtypes import SINGLE, unit_roundoff

Values: TypeAlias = Mapping[str, Any]  # arguments by name: tensors as arrays, numbers as they are
Formula: TypeAlias = Callable[[Values], Any]
Function: TypeAlias = Callable[[Values], Any]
_erf = np.frompyfunc(math.erf, 1, 1)
_erfc = np.frompyfunc(math.erfc, 1, 1)
ROOT_2 = math.sqrt(2.0)
ROOT_2_PI = math.sqrt(2.0 / math.pi)


class Elementwise(NamedTuple):
    """An operator's function, and the size of what its result is made of, where that is more than the result."""

    function: Function
    scale: Function | None = None
    flushes: bool = False
    operands: tuple[str, ...] | None = None  # the tensors that are read, where not all are
    inner: Function | None = None  # the size of what is rounded once on the way to the result
    narrow: Function | None = None  # … and of what kernels of narrow dtypes round to these, in places or everywhere


def erf(x: Array) -> Array:
    """Return the error function."""
    return np.asarray(_erf(x), np.float64)


def sigmoid(x: Array) -> Array:
    """Return the logistic function."""
    return np.asarray(np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x)))))


def softplus(x: Array) -> Array:
    """Return log(1 + exp(x))."""
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def _gelu(v: Values) -> Any:
    x = v["self"]
    if v["approximate"] == "tanh":
        return 0.5 * x * (1 + np.tanh(ROOT_2_PI * (x + 0.044715 * x**3)))
    return 0.5 * x * np.asarray(_erfc(-x / ROOT_2), np.float64)


def _unary(function: Callable[[Any], Any], scale: Callable[[Any], Any] | None = None) -> Elementwise:
    """Return an operator of one tensor that is no arithmetic: by a series, a table, a special function unit."""
    size = None if scale is None else lambda v: scale(v["self"])
    return Elementwise(lambda v: function(v["self"]), size, True)


def _clamp(v: Values) -> Any:
    x = v["self"]
    low, high = v.get("min"), v.get("max")
    x = x if low is None else np.where(np.isnan(low), low, np.maximum(x, low))
    return x if high is None else np.minimum(x, high)


def _divide(v: Values) -> Any:
    if v.get("rounding_mode") is not None:
        raise NotVerifiedError("a quotient cut to a whole number")
    return v["self"] / v["other"]


def _bits(function: Callable[[Array, Array], Array]) -> Elementwise:
    def both(v: Values) -> Any:
        return function(*(np.asarray(v[name]).astype(np.int64) for name in ("self", "other")))

    return Elementwise(both)


def _pow_scale(v: Values) -> Any:
    base, exponent = np.abs(v["self"]), v["exponent"]
    return np.abs(base**exponent) * (1 + np.abs(exponent * np.log(np.where(base > 0, base, 1.0))))


def _times_alpha(v: Values) -> Any:
    """Return the product that is rounded before it is added; none is where it is as large as the factor."""
    return np.abs(v["alpha"] * v["other"]) if v.get("alpha", 1) not in (1, -1) else 0.0


def _term(v: Values) -> Any:
    return np.abs(v["value"] * v["tensor1"] * v["tensor2"])


_TABLE: dict[str, Elementwise] = {
    # Arithmetic: rounded once, as IEEE 754 says
    "add": Elementwise(lambda v: v["self"] + v.get("alpha", 1) * v["other"], inner=_times_alpha),
    "sub": Elementwise(lambda v: v["self"] - v.get("alpha", 1) * v["other"], inner=_times_alpha),
    "rsub": Elementwise(
        lambda v: v["other"] - v.get("alpha", 1) * v["self"],
        inner=lambda v: np.abs(v["alpha"] * v["self"]) if v.get("alpha", 1) not in (1, -1) else 0.0,
    ),
    "mul": Elementwise(lambda v: v["self"] * v["other"]),
    # A number divides by its reciprocal, which is rounded before.
    "div": Elementwise(_divide, inner=lambda v: 0.0 if np.ndim(v["other"]) else 1.5 * np.abs(v["self"] / v["other"])),
    "reciprocal": Elementwise(lambda v: 1.0 / v["self"]),
    "square": Elementwise(lambda v: v["self"] ** 2),
    "sqrt": Elementwise(lambda v: np.sqrt(v["self"])),
    "neg": Elementwise(lambda v: -v["self"]),
    "abs": Elementwise(lambda v: np.abs(v["self"])),
    "sgn": Elementwise(lambda v: np.sign(v["self"])),
    "sign": Elementwise(lambda v: np.sign(v["self"])),
    "floor": Elementwise(lambda v: np.floor(v["self"])),
    "ceil": Elementwise(lambda v: np.ceil(v["self"])),
    "trunc": Elementwise(lambda v: np.trunc(v["self"])),
    "round": Elementwise(lambda v: np.round(v["self"] * 10.0 ** v["decimals"]) / 10.0 ** v["decimals"]),
    "logaddexp": Elementwise(
        lambda v: np.logaddexp(v["self"], v["other"]), lambda v: 1 + np.abs(v["self"]) + np.abs(v["other"]), True
    ),
    "bitwise_and": _bits(np.bitwise_and),
    "bitwise_or": _bits(np.bitwise_or),
    "bitwise_xor": _bits(np.bitwise_xor),
    "fmax": Elementwise(lambda v: np.fmax(v["self"], v["other"])),
    "fmin": Elementwise(lambda v: np.fmin(v["self"], v["other"])),
    "_prelu_kernel": Elementwise(lambda v: np.where(v["self"] > 0, v["self"], v["self"] * v["weight"])),
    "scalar_tensor": Elementwise(lambda v: v["s"], operands=()),
    "maximum": Elementwise(lambda v: np.maximum(v["self"], v["other"])),
    "minimum": Elementwise(lambda v: np.minimum(v["self"], v["other"])),
    "clamp": Elementwise(_clamp),
    "clamp_min": Elementwise(_clamp),
    "clamp_max": Elementwise(_clamp),
    "relu": Elementwise(lambda v: np.where(v["self"] > 0, v["self"], v["self"] * 0.0)),
    "threshold": Elementwise(lambda v: np.where(v["self"] <= v["threshold"], v["value"], v["self"])),
    "hardtanh": Elementwise(lambda v: np.clip(v["self"], v["min_val"], v["max_val"])),
    "leaky_relu": Elementwise(lambda v: np.where(v["self"] > 0, v["self"], v["self"] * v["negative_slope"])),
    "where": Elementwise(lambda v: np.where(v["condition"] != 0, v["self"], v["other"])),
    "masked_fill": Elementwise(lambda v: np.where(v["mask"] != 0, v["value"], v["self"])),
    "lerp": Elementwise(
        lambda v: v["self"] + v["weight"] * (v["end"] - v["self"]),
        inner=lambda v: 3 * np.abs(v["weight"] * (v["end"] - v["self"])) + np.abs(v["end"] - v["self"]),
    ),
    "addcmul": Elementwise(
        lambda v: v["self"] + v["value"] * v["tensor1"] * v["tensor2"],
        inner=lambda v: 2 * _term(v),
    ),
    "addcdiv": Elementwise(
        lambda v: v["self"] + v["value"] * v["tensor1"] / v["tensor2"],
        inner=lambda v: 2 * np.abs(v["value"] * v["tensor1"] / v["tensor2"]),
    ),
    # Copies and casts
    "clone": Elementwise(lambda v: v["self"]),
    "_to_copy": Elementwise(lambda v: v["self"]),
    "copy": Elementwise(lambda v: v["src"], operands=("src",)),
    "fill": Elementwise(lambda v: v["value"], operands=("value",)),
    "zero": Elementwise(lambda v: 0.0, operands=()),
    # Comparisons and logic
    "eq": Elementwise(lambda v: v["self"] == v["other"]),
    "ne": Elementwise(lambda v: v["self"] != v["other"]),
    "lt": Elementwise(lambda v: v["self"] < v["other"]),
    "le": Elementwise(lambda v: v["self"] <= v["other"]),
    "gt": Elementwise(lambda v: v["self"] > v["other"]),
    "ge": Elementwise(lambda v: v["self"] >= v["other"]),
    "logical_not": Elementwise(lambda v: v["self"] == 0),
    "logical_and": Elementwise(lambda v: (v["self"] != 0) & (v["other"] != 0)),
    "logical_or": Elementwise(lambda v: (v["self"] != 0) | (v["other"] != 0)),
    "isnan": Elementwise(lambda v: np.isnan(v["self"])),
    "isinf": Elementwise(lambda v: np.isinf(v["self"])),
    # Functions
    "exp": _unary(np.exp, lambda x: np.exp(x) * (1 + np.abs(x))),
    "exp2": _unary(np.exp2, lambda x: np.exp2(x) * (1 + np.abs(x))),
    "expm1": _unary(np.expm1, lambda x: np.abs(np.expm1(x)) * (1 + np.abs(x))),
    "log": _unary(np.log, lambda x: 1 + np.abs(np.log(x))),
    "log2": _unary(np.log2, lambda x: 1 + np.abs(np.log2(x))),
    "log10": _unary(np.log10, lambda x: 1 + np.abs(np.log10(x))),
    "log1p": _unary(np.log1p, lambda x: np.abs(x / (1 + x)) + np.abs(np.log1p(x))),
    "rsqrt": Elementwise(
        lambda v: 1 / np.sqrt(v["self"]), None, True, narrow=lambda v: 1 / np.sqrt(v["self"])
    ),  # the root is rounded before it is inverted
    "sin": _unary(np.sin),
    "cos": _unary(np.cos, lambda x: 1e-3 + np.abs(np.cos(x))),
    "tan": _unary(np.tan),
    "tanh": _unary(np.tanh),
    "sinh": _unary(np.sinh, lambda x: np.abs(np.sinh(x)) * (1 + np.abs(x))),
    "cosh": _unary(np.cosh, lambda x: np.cosh(x) * (1 + np.abs(x))),
    "atan": _unary(np.arctan),
    "asin": _unary(np.arcsin, lambda x: 1.0),
    "acos": _unary(np.arccos, lambda x: 1.0),
    "erf": _unary(erf),
    "sigmoid": _unary(sigmoid, lambda x: sigmoid(x) * (1 + np.abs(x))),
    "silu": _unary(lambda x: x * sigmoid(x), lambda x: np.abs(x) * sigmoid(x) * (1 + np.abs(x))),
    "gelu": Elementwise(_gelu, lambda v: np.abs(v["self"]), True),
    "mish": _unary(lambda x: x * np.tanh(softplus(x)), lambda x: np.abs(x)),
    "softplus": Elementwise(
        lambda v: np.where(
            v["self"] * v["beta"] > v["threshold"], v["self"], softplus(v["self"] * v["beta"]) / v["beta"]
        ),
        lambda v: softplus(v["self"] * v["beta"]) / v["beta"] * (1 + np.abs(v["self"] * v["beta"])),
        True,
    ),
    "elu": Elementwise(
        lambda v: np.where(
            v["self"] > 0, v["self"] * v["scale"], np.expm1(v["self"] * v["input_scale"]) * v["alpha"] * v["scale"]
        ),
        None,
        True,
    ),
    "hardswish": Elementwise(lambda v: v["self"] * np.clip(v["self"] + 3, 0, 6) / 6, lambda v: np.abs(v["self"]), True),
    "hardsigmoid": Elementwise(lambda v: np.clip(v["self"] + 3, 0, 6) / 6, lambda v: 1.0, True),
    "log_sigmoid_forward": Elementwise(
        lambda v: -softplus(-v["self"]), lambda v: softplus(-v["self"]) * (1 + np.abs(v["self"])), True
    ),
    "pow": Elementwise(lambda v: np.power(v["self"], v["exponent"]), _pow_scale, True),
    "atan2": Elementwise(lambda v: np.arctan2(v["self"], v["other"]), None, True),
    "hypot": Elementwise(lambda v: np.hypot(v["self"], v["other"]), None, True),
    "native_dropout_backward": Elementwise(lambda v: v["grad_output"] * v["mask"] * v["scale"]),
}


def elementwise(function: Elementwise) -> Rule:
    """Return the rule of an operator that computes each element for itself."""

    def steps(call: OperatorCall, sampling: Sampling) -> Steps:
        out = call.out
        if not is_readable(out):
            raise NotVerifiedError(f"{dtype_of(out)} in a layout of its own")
        names = [
            name
            for name, value in call.given.items()
            if isinstance(value, torch.Tensor)
            and name != "out"
            and (function.operands is None or name in function.operands)
        ]
        boxes = sampling.boxes(out.shape)
        reads = [spread(call[name], box) for box in boxes for name in names]
        arrays = iter((yield reads))
        inputs = [{name: next(arrays) for name in names} for _ in boxes]
        outputs = yield [Read(out, box) for box in boxes]
        return [_compared(function, call, names, values, got, box) for values, got, box in zip(inputs, outputs, boxes)]

    return steps


def _compared(
    function: Elementwise, call: OperatorCall, names: list[str], values: dict[str, Array], got: Array, box: Box
) -> Compared:
    """Compute again; where the device may have rounded an operand before (a number, a wider scalar), as it did."""
    dtype = dtype_of(call.out)
    made = []
    with np.errstate(all="ignore"):
        for rounded, is_narrow in _ways(call, names, values):
            # A kernel that casts its numbers to the output's dtype may compute its last elements in that dtype, too.
            steps = unit_roundoff(dtype) / SINGLE if is_narrow else 1.0
            exact = np.broadcast_to(np.asarray(function.function(rounded), np.float64), got.shape)
            if not call.out.dtype.is_floating_point:
                exact = _whole(exact, call.out.dtype, got)
            scale = 1.0 if function.scale is None else function.scale(rounded)
            scale = np.abs(exact) if function.scale is None else np.maximum(np.abs(exact), scale)
            made.append(
                Compared(
                    got,
                    exact,
                    scale,
                    dtype,
                    box,
                    tuple(call.out.shape),
                    function.flushes,
                    got.size == call.out.numel(),
                    inner=_rounded(function, rounded, steps, dtype),
                )
            )
    return made[0] if len(made) == 1 else min(made, key=lambda part: deviation(part).units)


def _rounded(function: Elementwise, values: Values, steps: float, dtype: str) -> Array | float:
    """Return the size of what is rounded on the way, as roundings of float32."""
    inner = 0.0 if function.inner is None else steps * np.abs(function.inner(values))
    if function.narrow is None or unit_roundoff(dtype) <= SINGLE:
        return inner
    return np.asarray(inner + unit_roundoff(dtype) / SINGLE * np.abs(function.narrow(values)))


def _whole(exact: Array, dtype: torch.dtype, got: Array) -> Array:
    """Return what a whole number or a truth value becomes; where it does not fit, what the device made of it."""
    if dtype is torch.bool:
        return np.asarray(exact != 0, np.float64)
    edge = float(torch.iinfo(dtype).max)
    inside = np.isfinite(exact) & (np.abs(exact) < min(edge, 2.0**53))
    return np.where(inside, np.trunc(np.where(inside, exact, 0.0)), got)


class _Way(NamedTuple):
    """Values that the device may have computed with."""

    values: dict[str, Any]
    is_narrow: bool = False  # its numbers were cast to the output's dtype


def _ways(call: OperatorCall, names: list[str], values: dict[str, Array]) -> Iterator[_Way]:
    """Yield the values that the device may have computed with: numbers and scalars are cast before."""
    plain = {name: value for name, value in call.given.items() if not isinstance(value, torch.Tensor)}
    out = call.out.dtype
    numbers = {
        name: value
        for name, value in plain.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value != float(np.float32(value))
    }
    scalars = [name for name in names if call[name].dim() == 0 and call[name].dtype.is_floating_point]
    narrow = out.is_floating_point and out.itemsize < 8
    if not narrow or not (numbers or scalars):
        yield _Way({**plain, **values})
        return
    single = {**plain, **values, **{name: float(np.float32(value)) for name, value in numbers.items()}}
    yield _Way({**plain, **values})
    yield _Way(single)
    if scalars:
        yield _Way({**single, **{name: _cast(values[name], torch.float32) for name in scalars}})
    if (numbers or scalars) and out.itemsize < 4:
        coarse = {name: float(_cast(np.float64(value), out)) for name, value in numbers.items()}
        yield _Way({**single, **coarse, **{name: _cast(values[name], out) for name in scalars}}, True)


def _cast(value: object, dtype: torch.dtype) -> Array:
    from numscope.capture.torch.verify.lens import _NUMPY

    return np.asarray(np.asarray(value).astype(_NUMPY[dtype]), np.float64)


for _name, _function in _TABLE.items():
    add_rule(_name, elementwise(_function))
