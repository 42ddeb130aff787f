"""`ns.copy_weights`: copies one framework's weights into the other's model, by rules of names and layouts.

A parameter is copied to the parameter of the same path. Paddle's Linear holds its weight as [in, out] and torch's as
[out, in], so it is transposed. A norm's `running_mean` and `running_var` are `_mean` and `_variance` in Paddle. Torch's
attention has one matrix `in_proj_weight` for query, key and value; Paddle's has a Linear for each.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from numscope.core.errors import SettingsError

if TYPE_CHECKING:
    import paddle
    import torch

Values = dict[str, npt.NDArray[np.generic]]  # by the name of the parameter or buffer

_STATISTICS = {"running_mean": "_mean", "running_var": "_variance"}
_SKIPPED = ("num_batches_tracked",)  # torch counts them, Paddle does not


def copy_weights(source: object, target: object) -> list[str]:
    """Copy all parameters and statistics of `source` into `target`; return their names in the target.

    Either may be a torch module or a Paddle layer. A name or shape that does not fit is an error, and nothing is copied.
    """
    given, wanted = _model(source), _model(target)
    values = given.read()
    if isinstance(given, _Torch) and isinstance(wanted, _Paddle):
        values = _to_paddle(values, given, wanted)
    elif isinstance(given, _Paddle) and isinstance(wanted, _Torch):
        values = _to_torch(values, given, wanted)
    names = wanted.names()
    optional = set(filter(_is_skipped, names)) | wanted.aliases()
    missing = [name for name in names if name not in values and name not in optional]
    if missing:
        near = difflib.get_close_matches(missing[0], values, 1)
        raise SettingsError(
            f"{missing[0]} has no counterpart in the {given.name} model"
            + (f"; nearest is {near[0]}" if near else "")
            + (f" ({len(missing)} more)" if missing[1:] else "")
        )
    again = given.aliases()
    extra = [name for name in values if name not in names and name not in again and not _is_skipped(name)]
    if extra:
        raise SettingsError(f"{extra[0]} of the {given.name} model has no place in the {wanted.name} model")
    for name in names:
        if name in values and tuple(values[name].shape) != names[name]:
            raise SettingsError(f"{name}: the shapes differ, {list(values[name].shape)} into {list(names[name])}")
    wanted.write({name: values[name] for name in names if name in values})
    return [name for name in names if name in values]


def _model(model: object) -> _Torch | _Paddle:
    torch, paddle = sys.modules.get("torch"), sys.modules.get("paddle")
    if torch is not None and isinstance(model, torch.nn.Module):
        return _Torch(model)
    if paddle is not None and isinstance(model, paddle.nn.Layer):
        return _Paddle(model)
    raise SettingsError(f"copy_weights got a {type(model).__name__}: give a torch.nn.Module and a paddle.nn.Layer")


def _is_skipped(name: str) -> bool:
    """Tell whether only torch has a statistic of this name."""
    return name.split(".")[-1] in _SKIPPED


def _aliases(state: Mapping[str, object]) -> set[str]:
    """Return the names of tensors that have an earlier name too: Paddle's LSTM lists its weights again in its cells."""
    first = {id(tensor): name for name, tensor in reversed(list(state.items()))}
    return {name for name, tensor in state.items() if first[id(tensor)] != name}


class _Torch:
    name = "torch"

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._state = model.state_dict(keep_vars=True)

    def names(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._state.items()}

    def read(self) -> Values:
        from numscope.capture.torch.identity.subclasses import to_numpy

        return {name: to_numpy(tensor.detach().contiguous()) for name, tensor in self._state.items()}

    def aliases(self) -> set[str]:
        return _aliases(self._state)

    def write(self, values: Values) -> None:
        import torch

        with torch.no_grad():
            for name, value in values.items():
                wide = value.astype(np.float32) if value.dtype.name in ("bfloat16",) else value
                self._state[name].copy_(torch.from_numpy(np.ascontiguousarray(wide)))

    def linear_weights(self) -> set[str]:
        import torch

        return {
            f"{path}.weight".lstrip(".") for path, m in self._model.named_modules() if isinstance(m, torch.nn.Linear)
        }


class _Paddle:
    name = "paddle"

    def __init__(self, model: paddle.nn.Layer) -> None:
        self._model = model
        self._state = model.state_dict()

    def names(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._state.items()}

    def read(self) -> Values:
        from numscope.capture.paddle.tensors import to_numpy

        return {name: to_numpy(tensor) for name, tensor in self._state.items()}

    def aliases(self) -> set[str]:
        return _aliases(self._state)

    def write(self, values: Values) -> None:
        import paddle

        for name, value in values.items():
            tensor = self._state[name]
            wide = value.astype(np.float32) if value.dtype.name == "bfloat16" else value
            tensor.set_value(paddle.to_tensor(np.ascontiguousarray(wide)).astype(tensor.dtype))

    def linear_weights(self) -> set[str]:
        import paddle

        layers = self._model.named_sublayers(include_self=True)
        return {f"{path}.weight".lstrip(".") for path, layer in layers if isinstance(layer, paddle.nn.Linear)}


def _to_paddle(values: Values, torch_side: _Torch, paddle_side: _Paddle) -> Values:
    transposed = torch_side.linear_weights() | paddle_side.linear_weights()
    found: Values = {}
    for name, value in values.items():
        path, dot, last = name.rpartition(".")
        if last in ("in_proj_weight", "in_proj_bias"):
            kind = last.removeprefix("in_proj_")
            for part, piece in zip(("q", "k", "v"), np.split(value, 3)):
                found[f"{path}{dot}{part}_proj.{kind}"] = piece.T if kind == "weight" else piece
        else:
            found[f"{path}{dot}{_STATISTICS.get(last, last)}"] = value.T if name in transposed else value
    return found


def _to_torch(values: Values, paddle_side: _Paddle, torch_side: _Torch) -> Values:
    back = {paddle: torch for torch, paddle in _STATISTICS.items()}
    transposed = paddle_side.linear_weights()
    wanted = torch_side.names()
    found: Values = {}
    for name, value in values.items():
        path, dot, last = name.rpartition(".")
        found[f"{path}{dot}{back.get(last, last)}"] = value.T if name in transposed else value
    for name in wanted:
        path, dot, last = name.rpartition(".")
        if last in ("in_proj_weight", "in_proj_bias"):
            parts = [f"{path}{dot}{part}_proj.{last.removeprefix('in_proj_')}" for part in "qkv"]
            if all(part in found for part in parts):
                found[name] = np.concatenate([found.pop(part) for part in parts])
    return found
