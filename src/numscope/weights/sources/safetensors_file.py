"""Reads safetensors: a file, an index of several, or all of a folder."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

from numscope.core.errors import RunError
from numscope.core.json_value import Json, members
from numscope.store.dtypes import SAFETENSORS
from numscope.weights.sources.files import File, Place, dtype_of
from numscope.weights.tensor import Tensor, check_name

_DTYPES = {short: name for name, short in SAFETENSORS.items()} | {
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "C64": "complex64",
}
_LONGEST = 100_000_000  # bytes of a header: the format's own limit


def read(path: Place) -> Iterator[Tensor]:
    """Yield the tensors of a file."""
    file = File(path)
    length = int.from_bytes(file.bytes(0, 8), "little") if file.size >= 8 else 0
    if not 2 <= length <= min(_LONGEST, file.size - 8):
        raise file.damaged(f"its header says that it has {length} bytes")
    for name, entry in header(path, bytes(file.bytes(8, length))).items():
        if name == "__metadata__":
            continue
        parts = members(entry)
        dtype, shape, offsets = parts.get("dtype"), parts.get("shape"), parts.get("data_offsets")
        if not (isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2 and dtype in _DTYPES):
            raise file.damaged(f"the entry {name!r} is none of a tensor that numscope knows: {entry}"[:200])
        if not all(type(n) is int and n >= 0 for n in [*shape, *offsets]):
            raise file.damaged(f"the entry {name!r} has a size below zero")
        start, end = (int(str(n)) for n in offsets)
        sizes = tuple(int(str(n)) for n in shape)
        kind = _DTYPES[str(dtype)]
        if end - start != math.prod(sizes) * dtype_of(kind, path).itemsize:
            raise file.damaged(f"the entry {name!r} has {end - start} bytes for the shape {shape} of {dtype}")
        yield Tensor(name, kind, sizes, file.reader(8 + length + start, kind, sizes))


def header(path: Place, text: bytes) -> dict[str, Json]:
    """Return the members of a header."""
    try:
        content: Json = json.loads(text)
    except (ValueError, RecursionError):
        raise RunError(f"{path} is damaged (its header is not JSON): copy it again from where it was made") from None
    return members(content)


def shards(index: Path) -> list[Path]:
    """Return the files that an index names, each in the index's own folder."""
    names = sorted({str(name) for name in members(header(index, index.read_bytes()).get("weight_map")).values()})
    if not names:
        raise RunError(f"{index} has no weight_map: name the folder, or a file of tensors")
    for name in names:
        if Path(check_name(name, index)).name != name or name not in os.listdir(index.parent):
            raise RunError(f"{index} names {name!r}, which is not in its folder: put all files into one")
    return [index.parent / name for name in names]
