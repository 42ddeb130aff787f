"""Reads plain folders of tensors: .npy, .npz, .pt and .safetensors files, with optional `step{N}` and `rank{R}` folders."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numscope.core.dtypes import AnyArray, AnyDtype
from numscope.core.errors import RunError
from numscope.core.names import natural_key, split_tensor
from numscope.core.untrusted import check_size, reading
from numscope.store.dtypes import SAFETENSORS, numpy_dtype
from numscope.store.formats import torch_file
from numscope.store.formats.foreign import Dump, ForeignCall, ForeignStep, ForeignTensor

TOOL = "plain folder"
_SUFFIXES = (".npy", ".npz", ".pt", ".pth", ".safetensors")


def find(path: Path) -> list[Path]:
    """Return the tensor files under a path, or the path itself where it is one."""
    if path.is_file():
        return [path] if path.suffix in _SUFFIXES else []
    files = (file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
    return sorted(files, key=lambda file: natural_key(str(file)))


def read(path: Path, trust_pickle: bool = False) -> Dump:
    """Return the files under a path as calls: by a name that says call and slot, or as values the user saved."""
    root = path if path.is_dir() else path.parent
    steps: dict[tuple[int, int], dict[str, ForeignCall]] = {}
    for file in find(path):
        origin = _origin(file.relative_to(root))
        calls = steps.setdefault((origin.rank, origin.step), {})
        for label, tensor in _tensors(file, origin.label, trust_pickle):
            name, slot = split_tensor(label) or (f"Save.{label}.0.forward", "output.0")
            calls.setdefault(name, ForeignCall(name)).slots.append((slot, tensor))
    every = [ForeignStep(rank, step, list(calls.values())) for (rank, step), calls in sorted(steps.items())]
    return Dump(TOOL, every, notes={"source": path.name})


class _Origin(NamedTuple):
    """The step, the rank and the label that a file's path gives to its tensors."""

    step: int
    rank: int
    label: str


def _origin(relative: Path) -> _Origin:
    numbers = {"step": 0, "rank": 0}
    labels = []
    for part in relative.with_suffix("").parts:
        match = re.fullmatch(r"(?P<kind>step|rank)_?(?P<number>\d+)", part)
        if match:
            numbers[match["kind"]] = int(match["number"])
        else:
            labels.append(part)
    return _Origin(numbers["step"], numbers["rank"], ".".join(labels) or relative.stem)


def _tensors(file: Path, label: str, trust_pickle: bool) -> Iterator[tuple[str, ForeignTensor]]:
    """Return the tensors of a file, each under the file's label and its own."""
    if file.suffix == ".npy":
        yield label, ForeignTensor.of_npy(file)
    elif file.suffix == ".npz":
        with reading(file), np.load(file) as archive:
            check_size(sum(member.file_size for member in archive.zip.infolist()), file)
            for key in archive.files:
                yield f"{label}.{key}", ForeignTensor.of_array(archive[key])
    elif file.suffix == ".safetensors":
        yield from ((f"{label}.{key}", tensor) for key, tensor in _safetensors(file))
    else:
        for path, array in torch_file.arrays_in(torch_file.load(file, trust_pickle)):
            yield f"{label}.{path}" if path else label, ForeignTensor.of_array(array)


def _safetensors(file: Path) -> Iterator[tuple[str, ForeignTensor]]:
    names = {code: name for name, code in SAFETENSORS.items()}
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        try:
            header = json.loads(stream.read(length) if length <= size else b"")
            places = [(entry["dtype"], entry["shape"], *entry["data_offsets"]) for entry in _entries(header)]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise RunError(f"{file} is not a safetensors file") from None
    for code, shape, begin, end in places:
        kind = numpy_dtype(names.get(code, ""))
        if min((begin, *shape)) < 0 or (
            kind is not None and not math.prod(shape) * kind.itemsize <= end - begin <= size - 8 - length
        ):
            raise RunError(f"{file} is damaged: a tensor of shape {shape} is not in it")
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        dtype = numpy_dtype(names.get(entry["dtype"], ""))
        if dtype is None:
            raise RunError(f"{file} holds a {entry['dtype']} tensor, which numpy cannot hold")
        begin, shape = 8 + length + entry["data_offsets"][0], tuple(entry["shape"])
        yield key, ForeignTensor(dtype.name, shape, partial(_from_file, file, dtype, begin, shape))


def _entries(header: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for key, entry in header.items() if key != "__metadata__"]


def _from_file(file: Path, dtype: AnyDtype, begin: int, shape: tuple[int, ...]) -> AnyArray:
    count = int(np.prod(shape, dtype=np.int64))
    return np.fromfile(file, dtype, count, offset=begin).reshape(shape)
