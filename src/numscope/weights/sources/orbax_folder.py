"""Reads orbax folders, where the package tensorstore is there, on which orbax stands: neither JAX nor a device is needed.

`_METADATA` lists the arrays; each is a zarr array, in files of its own or all in one OCDBT store, read some rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from numscope.core.dtypes import AnyArray
from numscope.core.errors import RunError
from numscope.core.json_value import items, members
from numscope.core.untrusted import check_size
from numscope.weights.sources.files import check_shape, dtype_of
from numscope.weights.sources.flax_file import OF_THE_JOB, package
from numscope.weights.sources.safetensors_file import header
from numscope.weights.tensor import Read, Tensor, check_name

METADATA = "_METADATA"
_CACHE = 1 << 28  # bytes of chunks that were decompressed, of which rows are yet to be read


def is_orbax(folder: Path) -> bool:
    """Tell whether a folder is a checkpoint of orbax's, or a step of its CheckpointManager."""
    return (folder / METADATA).is_file() or (folder / "_CHECKPOINT_METADATA").is_file()


def read(folder: Path) -> Iterator[Tensor]:
    """Yield the arrays of a folder; of a whole job's, the model's alone."""
    place = (
        folder if (folder / METADATA).is_file() else next((one.parent for one in folder.glob(f"*/{METADATA}")), None)
    )
    if place is None:
        raise RunError(f"{folder} has no {METADATA}: name the folder of one item that orbax saved")
    tensorstore = package("tensorstore", f"{folder} is an orbax folder, which")
    content = header(place / METADATA, (place / METADATA).read_bytes())
    trees = [
        [str(members(key).get("key")) for key in items(members(entry).get("key_metadata"))]
        for entry in members(content.get("tree_metadata")).values()
        if members(members(entry).get("value_metadata")).get("value_type") != "None"
    ]
    has_parameters = any(keys[:1] == ["params"] for keys in trees)
    for keys in trees:
        if has_parameters and keys[0] in OF_THE_JOB:
            continue
        yield _tensor(tensorstore, place, ".".join(keys), content)


def _tensor(tensorstore: Any, folder: Path, name: str, content: Mapping[str, object]) -> Tensor:
    check_name(name, folder)
    root = str(folder.absolute())
    inside = {"driver": "ocdbt", "base": f"file://{root}/", "path": f"{name}/"}
    beside = {"driver": "file", "path": f"{root}/{name}/"}
    store = tensorstore.open(
        {
            "driver": "zarr3" if content.get("use_zarr3") else "zarr",
            "kvstore": inside if content.get("use_ocdbt") else beside,
            "context": {"cache_pool": {"total_bytes_limit": _CACHE}},
        },
        open=True,
        read=True,
    ).result()
    shape = check_shape(tuple(int(size) for size in store.shape), folder)
    kind = dtype_of(store.dtype.numpy_dtype.name, folder)
    check_size(math.prod(store.chunk_layout.read_chunk.shape) * kind.itemsize, f"{folder}: a chunk of {name}")
    return Tensor(name, kind.name, shape, _reader(store, shape, folder))


def _reader(store: Any, shape: tuple[int, ...], folder: Path) -> Read:
    inner = math.prod(shape[1:-1])

    def elements(part: Any) -> AnyArray:
        try:
            return np.asarray(part.read().result())
        except ValueError as error:  # of tensorstore, for whatever is wrong with a store
            why = " ".join(str(error).split())[:200]
            raise RunError(f"{folder} is damaged ({why}): copy it again from where it was made") from None

    def read(start: int, stop: int) -> AnyArray:
        if len(shape) < 2:
            return elements(store).reshape(1, -1)
        first, last = start // max(1, inner), -(-stop // max(1, inner))
        part = elements(store[first:last]).reshape(-1, shape[-1])
        return part[start - first * inner : stop - first * inner]

    return read
