"""Translates Paddle's names of optimizers and of function arguments into torch's.

Only arguments whose meaning is known in both frameworks, by name and by position, are compared. A difference in any
other argument shows in shapes and values.
"""

from __future__ import annotations

import json

from numscope.core.json_value import Json

# Torch's names of Paddle's optimizers.
OPTIMIZERS = {"Momentum": "SGD", "RMSProp": "RMSprop"}

# The names of a function's positional arguments: in torch's order, then in Paddle's. A dash stands for a tensor, or for an
# argument that the other framework does not have.
_POSITIONS = {
    "gelu": ("- approximate", "- approximate"),
    "leaky_relu": ("- negative_slope", "- negative_slope"),
    "elu": ("- alpha", "- alpha"),
    "softplus": ("- beta threshold", "- beta threshold"),
    "softmax": ("- dim", "- dim"),
    "log_softmax": ("- dim", "- dim"),
    "dropout": ("- p training", "- p - training"),
    "layer_norm": ("- - - - eps", "- - - - eps"),
    "group_norm": ("- num_groups - - eps", "- num_groups eps"),
    "batch_norm": ("- - - - - training momentum eps", "- - - - - training momentum eps"),
    "normalize": ("- p dim eps", "- p dim eps"),
    "cosine_similarity": ("- - dim eps", "- - dim eps"),
    "cross_entropy": ("- - - - ignore_index - reduction label_smoothing", "- - - ignore_index reduction"),
    "nll_loss": ("- - - - ignore_index - reduction", "- - - ignore_index reduction"),
    "mse_loss": ("- - - - reduction", "- - reduction"),
    "l1_loss": ("- - - - reduction", "- - reduction"),
    "smooth_l1_loss": ("- - - - reduction", "- - reduction"),
    "kl_div": ("- - - - reduction log_target", "- - reduction log_target"),
    "binary_cross_entropy": ("- - - - - reduction", "- - - reduction"),
    "binary_cross_entropy_with_logits": ("- - - - - reduction", "- - - reduction"),
    "scaled_dot_product_attention": ("- - - - dropout_p is_causal", "- - - - dropout_p is_causal"),
    "interpolate": ("- - - mode align_corners", "- - - mode align_corners"),
    "triu": ("- diagonal", "- diagonal"),
    "tril": ("- diagonal", "- diagonal"),
    "clamp": ("- min max", "- min max"),
    **dict.fromkeys(("add", "sub", "rsub", "mul", "div", "rdiv", "pow", "rpow"), ("- 1", "- 1")),
}
_NAMES = {"epsilon": "eps", "axis": "dim"}  # arguments that Paddle names differently
# Paddle's defaults of arguments that torch's layers always pass.
_DEFAULTS = {
    "softmax": {"dim": -1},
    "log_softmax": {"dim": -1},
    "cross_entropy": {"ignore_index": -100},
    "nll_loss": {"ignore_index": -100},
}
_SETTINGS = frozenset(("lr", "betas", "eps", "weight_decay", "momentum", "nesterov", "alpha", "centered", "amsgrad"))
_SETTINGS_NAMES = {"epsilon": "eps", "use_nesterov": "nesterov", "rho": "alpha"}


def arguments(text: str | None, op: str, is_paddle: bool) -> str | None:
    """Return, by torch's names, those of a function's recorded arguments that both frameworks have."""
    if op not in _POSITIONS:
        return None
    recorded = json.loads(text) if text else {}
    names = _POSITIONS[op][is_paddle].split()
    values: dict[str, Json] = dict(_DEFAULTS.get(op, {})) if is_paddle else {}
    for position, value in (recorded.get("args") or {}).items():
        if position.isdecimal() and int(position) < len(names):
            values[names[int(position)]] = value
    for name, value in (recorded.get("kwargs") or {}).items():
        values[_NAMES.get(name, name) if is_paddle else name] = value
    shared = set(" ".join(_POSITIONS[op]).split()) - {"-"}
    values = {name: _as_torch(name, value) if is_paddle else value for name, value in values.items() if name in shared}
    return json.dumps({"kwargs": values}) if values else None


def _as_torch(name: str, value: Json) -> Json:
    if name == "approximate" and isinstance(value, bool):
        return "tanh" if value else "none"
    if name == "momentum" and isinstance(value, float):  # Paddle's momentum is the share of the old statistics
        return round(1.0 - value, 12)
    return value


def settings(text: str | None, is_paddle: bool) -> str | None:
    """Return, by torch's names, those of an optimizer's recorded settings that both frameworks have."""
    groups = (json.loads(text) if text else {}).get("kwargs") or {}
    shared: dict[str, dict[str, Json]] = {}
    for number, group in groups.items():
        if not isinstance(group, dict):
            continue
        renamed = {_SETTINGS_NAMES.get(name, name) if is_paddle else name: value for name, value in group.items()}
        if "beta1" in renamed and "beta2" in renamed:
            renamed["betas"] = [renamed["beta1"], renamed["beta2"]]
        shared[number] = {name: value for name, value in renamed.items() if name in _SETTINGS}
    return json.dumps({"kwargs": shared}) if shared else None
