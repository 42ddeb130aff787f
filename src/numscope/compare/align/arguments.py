"""Which non-tensor arguments of two paired calls differ, and whether such a difference can change a number."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_words = str.split

# Say how, where or on which shape to compute, not what.
_HARMLESS = frozenset(
    _words(
        """inplace memory_format non_blocking copy out generator device layout requires_grad pin_memory foreach
    fused capturable differentiable maximize_memory need_weights average_attn_weights async_op group
    dtype_out stable sorted keepdim checkpoint use_reentrant names pin enable_gqa verbose initial_lr"""
    )
)
_MISSING = object()

# What a call means that does not give an argument, of torch's own functions: by operator, then by name.
_DEFAULTS: dict[str, dict[str, Any]] = {
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
    target: Any
    reference: Any
    telling: bool  # both sides give a number, a flag or a word, and the two are not the same

    def __str__(self) -> str:
        colon = ":" * self.name[-1:].isdigit()  # a position: its number must not run into the value's
        return f"{self.name}{colon} {_text(self.target)} against {_text(self.reference)}"


def differences(target: str | None, reference: str | None, op: str = "") -> list[Difference]:
    """Return the arguments that differ between two calls' recorded JSON; one that is not given is the operator's default."""
    if target == reference:
        return []
    flat_a, flat_b = _flatten(target), _flatten(reference)
    found = []
    for name in dict.fromkeys([*flat_a, *flat_b]):
        x, y = flat_a.get(name, _MISSING), flat_b.get(name, _MISSING)
        if x is y or (x == y and type(x) is type(y)) or _harmless(name):
            continue
        if _is_number(x) and _is_number(y) and x == y:
            continue
        default = _DEFAULTS.get(op, {}).get(name, _MISSING)
        meant = default if x is _MISSING else x, default if y is _MISSING else y
        if meant[0] is not _MISSING and meant[0] == meant[1]:
            continue
        found.append(Difference(name, x, y, _telling(*meant)))
    return found


def _telling(x: Any, y: Any) -> bool:
    if x is _MISSING or y is _MISSING or x is None or y is None:
        return False
    if isinstance(x, bool) or isinstance(y, bool):
        return isinstance(x, bool) and isinstance(y, bool)
    if isinstance(x, int) and isinstance(y, int):
        return False  # sizes, dims and indexes: what they change shows in shapes and values
    if _is_number(x) and _is_number(y):
        if min(abs(x), abs(y)) > 6e4 and (x > 0) == (y > 0):
            return False  # the least numbers of two dtypes, which mask alike
        return bool(abs(x - y) > 1e-7 * max(abs(x), abs(y)))
    if _is_dtype(x) and _is_dtype(y):
        return False  # what it changes shows in the outputs' dtypes and values
    return isinstance(x, str) and isinstance(y, str) and not x.startswith("<")


def _is_dtype(x: Any) -> bool:
    return isinstance(x, str) and x.rpartition(".")[2].rstrip("0123456789").startswith(("float", "bfloat", "complex"))


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def _harmless(name: str) -> bool:
    return name.rpartition(".")[2] in _HARMLESS


def _flatten(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return {"arguments": text}
    flat: dict[str, Any] = {}
    for part in ("args", "kwargs"):
        _spread("", value.get(part) or {}, flat)
    return flat


def _spread(path: str, value: Any, flat: dict[str, Any]) -> None:
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


def _text(value: Any) -> str:
    if value is _MISSING:
        return "not given"
    return repr(value) if isinstance(value, str) else str(value)
