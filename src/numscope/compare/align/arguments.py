"""Compares the non-tensor arguments of two paired calls, and tells whether a difference can change a number."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeGuard

from numscope.core.json_value import Json, members

# Arguments that choose how, where or in which shape a result is computed, but not its values.
_HARMLESS = frozenset(
    """
    inplace memory_format non_blocking copy out generator device layout requires_grad pin_memory foreach
    fused capturable differentiable maximize_memory need_weights average_attn_weights async_op group
    dtype_out stable sorted keepdim checkpoint use_reentrant names pin enable_gqa verbose initial_lr _stacklevel
    """.split()
)
_MISSING = object()
MASKS_FROM = 6e4  # a number this large is as low as a dtype has it: of a mask, that does the same in each dtype

# Defaults of torch's own functions: by operator, then by argument.
_DEFAULTS: dict[str, dict[str, Json]] = {
    "gelu": {"approximate": "none"},
    "layer_norm": {"eps": 1e-5},
    "group_norm": {"eps": 1e-5},
    "instance_norm": {"eps": 1e-5, "use_input_stats": True},
    "batch_norm": {"eps": 1e-5, "training": False},
    "normalize": {"p": 2.0, "eps": 1e-12},
    "cosine_similarity": {"eps": 1e-8},
    "cross_entropy": {"reduction": "mean", "label_smoothing": 0.0},
    "nll_loss": {"reduction": "mean"},
    "mse_loss": {"reduction": "mean"},
    "l1_loss": {"reduction": "mean"},
    "smooth_l1_loss": {"reduction": "mean", "beta": 1.0},
    "huber_loss": {"reduction": "mean", "delta": 1.0},
    "kl_div": {"reduction": "mean", "log_target": False},
    "binary_cross_entropy": {"reduction": "mean"},
    "binary_cross_entropy_with_logits": {"reduction": "mean"},
    "scaled_dot_product_attention": {"dropout_p": 0.0, "is_causal": False},
    "dropout": {"p": 0.5, "training": True},
    "leaky_relu": {"negative_slope": 0.01},
    "elu": {"alpha": 1.0},
    "interpolate": {"mode": "nearest"},
    "grid_sample": {"mode": "bilinear", "padding_mode": "zeros"},
    "pad": {"mode": "constant"},
    "avg_pool2d": {"ceil_mode": False, "count_include_pad": True},
    "max_pool2d": {"ceil_mode": False},
    "std": {"unbiased": True},
    "var": {"unbiased": True},
}


@dataclass(frozen=True)
class Difference:
    """One argument that differs."""

    name: str
    target: object
    reference: object
    telling: bool  # both sides pass a number, a flag or a word, and the two can lead to other values

    def __str__(self) -> str:
        colon = ":" * self.name[-1:].isdecimal()  # a position: its number must not run into the value's
        return f"{self.name}{colon} {_text(self.target)} against {_text(self.reference)}"


def differences(target: str | None, reference: str | None, op: str = "") -> list[Difference]:
    """Return the arguments that differ between two calls' recorded JSON; an argument not passed has the operator's default."""
    if target == reference:
        return []
    flat_a, flat_b = _flatten(target), _flatten(reference)
    different = []
    for name in dict.fromkeys([*flat_a, *flat_b]):
        x, y = flat_a.get(name, _MISSING), flat_b.get(name, _MISSING)
        if x is y or (x == y and type(x) is type(y)) or _harmless(name):
            continue
        if _is_number(x) and _is_number(y) and x == y:
            continue
        default = _DEFAULTS.get(op, {}).get(name, _MISSING)
        value_a, value_b = (default if value is _MISSING else value for value in (x, y))
        if value_a is not _MISSING and value_a == value_b:
            continue
        different.append(Difference(name, x, y, _telling(value_a, value_b)))
    return different


def _telling(x: object, y: object) -> bool:
    """Tell whether two values of an argument can lead to other numbers."""
    if x is _MISSING or y is _MISSING or x is None or y is None:
        return False
    if isinstance(x, bool) or isinstance(y, bool):
        return isinstance(x, bool) and isinstance(y, bool)
    if isinstance(x, int) and isinstance(y, int):
        return False  # sizes, dims and indexes: the effect shows in shapes and values
    if _is_number(x) and _is_number(y):
        if min(abs(x), abs(y)) > MASKS_FROM and (x > 0) == (y > 0):
            return False  # the lowest numbers of two dtypes: as masks they do the same
        return bool(abs(x - y) > 1e-7 * max(abs(x), abs(y)))
    if _is_dtype(x) and _is_dtype(y):
        return False  # the effect shows in the outputs' dtypes and values
    return isinstance(x, str) and isinstance(y, str) and not x.startswith("<")


def _is_dtype(x: object) -> bool:
    return isinstance(x, str) and _last_part(x).rstrip("0123456789").startswith(("float", "bfloat", "complex"))


def _is_number(x: object) -> TypeGuard[int | float]:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def _harmless(name: str) -> bool:
    return _last_part(name) in _HARMLESS


def _last_part(name: str) -> str:
    _, _, last = name.rpartition(".")
    return last


def _flatten(text: str | None) -> dict[str, Json]:
    """Return recorded arguments by position or name, those inside containers by their path."""
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return {"arguments": text}
    flat: dict[str, Json] = {}
    for part in ("args", "kwargs"):
        _spread("", members(value).get(part) or {}, flat)
    return flat


def _spread(path: str, value: Json, flat: dict[str, Json]) -> None:
    if isinstance(value, dict) and (value or not path):
        for key, item in value.items():
            _spread(f"{path}.{key}" if path else str(key), item, flat)
    elif isinstance(value, list) and value and any(isinstance(item, (dict, list, float)) for item in value):
        for index, item in enumerate(value):
            _spread(f"{path}.{index}" if path else str(index), item, flat)
    else:
        flat[path] = value


def numbers(text: str | None) -> dict[str, float]:
    """Return the plain numbers among a call's arguments, by position or name."""
    return {name: float(value) for name, value in _flatten(text).items() if _is_number(value)}


def _text(value: object) -> str:
    if value is _MISSING:
        return "not given"
    return repr(value) if isinstance(value, str) else str(value)
