"""Reads flax's msgpack files, where the package msgpack is there."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from numscope.core.dtypes import AnyArray
from numscope.core.errors import NumscopeError, RunError
from numscope.core.untrusted import check_size
from numscope.weights.sources.files import check_shape, dtype_of, rows_of
from numscope.weights.tensor import Tensor

_ARRAY, _SCALAR = 1, 3  # flax's codes of msgpack extensions
_CHUNKED = "__msgpack_chunked_array__"
_DEPTH = 60
OF_THE_JOB = ("opt_state", "optimizer", "step", "rng", "rngs", "dropout_rng")  # beside the model's "params"


def read(path: Path) -> Iterator[Tensor]:
    """Yield the arrays of a msgpack file, named by their keys with dots between; of a whole job's, the model's alone."""
    msgpack = package("msgpack", f"{path} is a msgpack file, which")
    check_size(path.stat().st_size, path)
    try:
        content = msgpack.unpackb(
            path.read_bytes(), ext_hook=_extension(msgpack, path), raw=False, strict_map_key=False
        )
    except NumscopeError:
        raise
    except Exception as error:  # msgpack raises several kinds for a damaged file
        raise RunError(f"{path} is damaged ({error}): copy it again from where it was made") from None
    if isinstance(content, dict) and "params" in content:
        content = {key: value for key, value in content.items() if key not in OF_THE_JOB}
    yield from _tensors(content, path)


def package(name: str, what: str) -> Any:  # a foreign module
    """Import a package that reads a format; raise what lacks where it is not there."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise NumscopeError(f"{what} needs the package {name}: pip install {name.replace('.', '-')}") from None


def _extension(msgpack: Any, path: Path) -> Any:
    def decode(code: int, data: bytes) -> object:
        if code not in (_ARRAY, _SCALAR):
            return None
        shape, name, content = msgpack.unpackb(data, raw=False)
        kind = dtype_of(str(name), path)
        sizes = check_shape(tuple(shape), path)
        if len(content) != math.prod(sizes) * kind.itemsize:
            raise RunError(f"{path} is damaged (an array of {list(sizes)} has {len(content)} bytes): copy it again")
        return np.frombuffer(content, kind).reshape(sizes)

    return decode


def _tensors(value: object, where: Path, path: str = "", depth: int = 0) -> Iterator[Tensor]:
    if depth > _DEPTH:
        raise RunError(f"{where} has its arrays nested too deeply: it was not written by a training job")
    if isinstance(value, dict) and _CHUNKED in value:
        shape, chunks = value["shape"], value["chunks"]
        sizes = [shape[key] for key in sorted(shape, key=int)] if isinstance(shape, dict) else list(shape)
        parts = [chunks[key] for key in sorted(chunks, key=int)] if isinstance(chunks, dict) else list(chunks)
        yield _tensor(path, np.concatenate(parts).reshape(sizes))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, where, f"{path}.{key}" if path else str(key), depth + 1)
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        yield _tensor(path, np.asarray(value))


def _tensor(name: str, array: AnyArray) -> Tensor:
    return Tensor(name, array.dtype.name, tuple(array.shape), rows_of(array))
