"""Reads Paddle's `.pdparams` without running code: a pickle of numpy arrays, whose bytes stay in the file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from numscope.core.dtypes import AnyArray
from numscope.store.formats.pickle_program import Name, Record, Rules, Span, SpanReader, interpret
from numscope.weights.sources.files import File, check_shape, dtype_of, rows_of
from numscope.weights.sources.torch_checkpoint import CURE
from numscope.weights.tensor import Tensor

_NAMES = "StructuredToParameterName@@"  # the dictionary of Paddle's own names of the parameters
_ARRAYS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
}
_DTYPES = {("numpy", "dtype")}
_BFLOAT16 = "uint16"  # so Paddle writes bfloat16, for which numpy has no type


@dataclass
class _Array:
    """An array as the program describes it: what `numpy.ndarray.__setstate__` would be given."""

    shape: tuple[int, ...]
    dtype: str
    is_fortran: bool
    content: bytes | Span


def read(path: Path) -> Iterator[Tensor]:
    """Yield the tensors of a file."""
    file = File(path)
    with path.open("rb") as stream:
        rules = Rules({}, lambda m, n: False, lambda m, n: (m, n) in _ARRAYS | _DTYPES, None, CURE)
        content = interpret(SpanReader(stream, file.size), rules, path)  # type: ignore[arg-type]
    inner = content.get("model") or content.get("state_dict") if isinstance(content, dict) else None
    members = inner if isinstance(inner, dict) else content
    if not isinstance(members, dict):
        raise file.damaged("it holds no dictionary of parameters")
    for name, value in members.items():
        if name == _NAMES:
            continue
        # A parameter is an array, or a pair of its name and an array.
        held = value[-1] if isinstance(value, tuple) and value else value
        array = _array(held, file)
        if array is not None:
            yield _tensor(str(name), array, file)


def _array(value: object, file: File) -> _Array | None:
    if not isinstance(value, Record) or not isinstance(value.state, tuple) or len(value.state) != 5:
        return None
    _, shape, dtype, is_fortran, content = value.state
    if not isinstance(dtype, Record) or not isinstance(content, (bytes, Span)) or not isinstance(shape, tuple):
        raise file.damaged("an array of it is not what numpy writes")
    order = dtype.state[1] if isinstance(dtype.state, tuple) and len(dtype.state) > 1 else "<"
    name = str(dtype.arguments[0]) if dtype.arguments and not isinstance(dtype.arguments[0], Name) else ""
    if order == ">" or not name or name.startswith("O"):
        raise file.damaged(f"an array of it has elements of the type {order}{name}")
    try:
        kind = np.dtype(name).name
    except TypeError:
        raise file.damaged(f"an array of it has elements of the type {name}") from None
    check_shape(shape, file.path)
    if len(content) != math.prod(shape) * dtype_of(kind, file.path).itemsize:
        raise file.damaged(f"an array of {list(shape)} has {len(content)} bytes")
    return _Array(shape, kind, bool(is_fortran), content)


def _tensor(name: str, array: _Array, file: File) -> Tensor:
    kind = "bfloat16" if array.dtype == _BFLOAT16 else array.dtype
    if isinstance(array.content, Span) and not array.is_fortran:
        return Tensor(name, kind, array.shape, file.reader(array.content.offset, kind, array.shape))

    def read(start: int, stop: int) -> AnyArray:
        held = array.content
        raw = held if isinstance(held, bytes) else bytes(file.bytes(held.offset, held.length))
        whole = np.frombuffer(raw, dtype_of(kind, file.path)).reshape(
            array.shape, order="F" if array.is_fortran else "C"
        )
        return rows_of(whole)(start, stop)

    return Tensor(name, kind, array.shape, read)
