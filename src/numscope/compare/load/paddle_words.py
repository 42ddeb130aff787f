"""Paddle's words for what torch has words for: optimizers, and the arguments of functions that both have.

An argument is compared only where it is known what it means on both sides, by name and by place; all others show in
shapes and values.
"""

from __future__ import annotations

import json
from typing import Any

# Optimizers, as torch calls them.
OPTIMIZERS = {"Momentum": "SGD", "RMSProp": "RMSprop"}

# What stands at each place of a function's arguments, in torch's words: torch's order, then Paddle's. A dash is something
# else: a tensor, or what the other does not have.
_PLACES = {
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
_NAMES = {"epsilon": "eps", "axis": "dim"}  # of arguments, where Paddle's are others
# What Paddle means where nothing is given, and what torch's layers always give.
_MEANT = {
    "softmax": {"dim": -1},
    "log_softmax": {"dim": -1},
    "cross_entropy": {"ignore_index": -100},
    "nll_loss": {"ignore_index": -100},
}
_SETTINGS = frozenset(("lr", "betas", "eps", "weight_decay", "momentum", "nesterov", "alpha", "centered", "amsgrad"))
_SETTINGS_NAMES = {"epsilon": "eps", "use_nesterov": "nesterov", "rho": "alpha"}


def arguments(text: str | None, op: str, is_paddle: bool) -> str | None:
    """Return a function's recorded arguments in torch's words, those that both frameworks have."""
    if op not in _PLACES:
        return None
    given = json.loads(text) if text else {}
    words = _PLACES[op][is_paddle].split()
    found = dict(_MEANT.get(op, {})) if is_paddle else {}
    for place, value in (given.get("args") or {}).items():
        if place.isdigit() and int(place) < len(words):
            found[words[int(place)]] = value
    for name, value in (given.get("kwargs") or {}).items():
        found[_NAMES.get(name, name) if is_paddle else name] = value
    known = set(" ".join(_PLACES[op]).split()) - {"-"}
    found = {name: _as_torch(op, name, value) if is_paddle else value for name, value in found.items() if name in known}
    return json.dumps({"kwargs": found}) if found else None


def _as_torch(op: str, name: str, value: Any) -> Any:
    if name == "approximate" and isinstance(value, bool):
        return "tanh" if value else "none"
    if name == "momentum" and isinstance(value, float):  # Paddle's is the share of the old statistics
        return round(1.0 - value, 12)
    return value


def settings(text: str | None, is_paddle: bool) -> str | None:
    """Return an optimizer's recorded settings in torch's words, those that both frameworks have."""
    groups = (json.loads(text) if text else {}).get("kwargs") or {}
    found = {}
    for number, group in groups.items():
        if not isinstance(group, dict):
            continue
        known = {_SETTINGS_NAMES.get(name, name) if is_paddle else name: value for name, value in group.items()}
        if "beta1" in known and "beta2" in known:
            known["betas"] = [known["beta1"], known["beta2"]]
        found[number] = {name: value for name, value in known.items() if name in _SETTINGS}
    return json.dumps({"kwargs": found}) if found else None
