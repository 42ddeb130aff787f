"""Reads the tensors of a model in memory: a torch module, a Paddle layer, or a mapping of names to arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from numscope.core.dtypes import AnyArray
from numscope.core.errors import SettingsError
from numscope.weights.sources.files import rows_of
from numscope.weights.tensor import Tensor


def is_model(source: object) -> bool:
    """Tell whether something is a model, or a mapping of its tensors."""
    return isinstance(source, Mapping) or hasattr(source, "state_dict")


def read(model: object) -> Iterator[Tensor]:
    """Yield the parameters and persistent buffers; nothing is copied before it is read, and then some rows at a time."""
    state = model if isinstance(model, Mapping) else _state(model)
    for name, value in _flat(state):
        tensor = _tensor(name, value)
        if tensor is not None:
            yield tensor


def _state(model: object) -> Mapping[str, object]:
    state = model.state_dict()  # type: ignore[attr-defined]
    if not isinstance(state, Mapping):
        raise SettingsError(f"{type(model).__name__}.state_dict() gives no mapping: give a mapping of names to arrays")
    return state


def _flat(state: Mapping[Any, object], path: str = "") -> Iterator[tuple[str, object]]:
    for key, value in state.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping):
            yield from _flat(value, name)
        else:
            yield name, value


def _tensor(name: str, value: object) -> Tensor | None:
    torch, paddle = sys.modules.get("torch"), sys.modules.get("paddle")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(name, value)
    if paddle is not None and isinstance(value, paddle.Tensor):
        from numscope.capture.paddle.tensors import to_numpy

        array = to_numpy(value)
        return Tensor(name, array.dtype.name, tuple(array.shape), rows_of(array), storage=id(value))
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.hasobject or array.dtype.kind in "USO":
            return None
        return Tensor(name, array.dtype.name, tuple(array.shape), rows_of(array), storage=array.ctypes.data)
    return None


def _of_torch(name: str, value: Any) -> Tensor | None:  # a torch tensor
    from numscope.capture.torch.identity.subclasses import to_numpy

    local = value.detach()
    if hasattr(local, "full_tensor"):
        local = local.full_tensor()
    if local.device.type == "meta" or local.is_nested or str(local.layout) != "torch.strided":
        return None
    matrix = local.reshape(1, -1) if local.dim() < 2 else local
    dtype = str(local.dtype).removeprefix("torch.")

    def read(start: int, stop: int) -> AnyArray:
        if matrix.dim() == 2:
            part = matrix[start:stop]
        else:
            inner = int(np.prod(matrix.shape[1:-1]))
            first, last = start // inner, -(-stop // inner)
            part = matrix[first:last].reshape(-1, matrix.shape[-1])[start - first * inner : stop - first * inner]
        return to_numpy(part.contiguous())

    pointer = (local.data_ptr(), tuple(local.shape), tuple(local.stride())) if local.numel() else None
    return Tensor(name, dtype, tuple(local.shape), read, storage=pointer)
