"""Writes and reads `.weights` files: the fingerprints of a set of weights, with which another machine compares its own.

It is a safetensors file. A tensor of one row (a norm, a bias) is kept whole; of any other the fingerprints of its rows
and columns are, 28 bytes each, in the order of the tensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from numscope.core.dtypes import AnyArray
from numscope.core.errors import RunError
from numscope.core.json_value import JsonObject, members
from numscope.core.report import plain
from numscope.store.dtypes import SAFETENSORS, numpy_dtype
from numscope.weights.sources import safetensors_file
from numscope.weights.sources.files import File, Place, check_shape
from numscope.weights.summary import SUMS, summarise
from numscope.weights.tensor import Encoding, Lines, Summary, Tensor, of_array

FORMAT = "numscope.weights-file/1"
SUFFIX = ".weights"
_KEY = "numscope"


def write(path: str | os.PathLike[str], tensors: Iterable[Tensor], progress: Callable[[Tensor], None]) -> None:
    """Measure tensors, and write their fingerprints."""
    entries: list[JsonObject] = []
    lines: list[Lines] = []
    kept: dict[str, AnyArray] = {}
    for number, tensor in enumerate(tensors):
        summary = summarise(tensor)
        entry: JsonObject = {
            "name": tensor.name,
            "stored": list(tensor.stored),
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "encoding": [tensor.encoding.name, tensor.encoding.tolerance] if tensor.encoding else None,
            "hash": str(summary.hash),
            "statistics": [summary.min, summary.max, summary.mean, summary.l2],
            "counts": [summary.zero, summary.non_finite],
        }
        if tensor.is_vector:
            kept[f"whole.{number}"] = np.ascontiguousarray(tensor.elements()).reshape(-1).view(np.uint8)
        elif summary.rows is not None and summary.columns is not None:
            entry["lines"] = [len(summary.rows), len(summary.columns)]
            lines += [summary.rows, summary.columns]
        entries.append(plain(entry))
        progress(tensor)
    if lines:
        kept["hash"] = np.concatenate([part.hash for part in lines])
        kept["sums"] = np.concatenate([part.sums for part in lines])
        kept["norm"] = np.concatenate([part.norm for part in lines])
    text = json.dumps({"format": FORMAT, "tensors": entries}, ensure_ascii=False)
    _save(path, kept or {"none": np.zeros(1, np.uint8)}, text)


def _save(path: str | os.PathLike[str], arrays: Mapping[str, AnyArray], text: str) -> None:
    """Write a safetensors file: those of the longest elements first, so that all are aligned."""
    ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)
    header: JsonObject = {"__metadata__": {_KEY: text}}
    end = 0
    for name, array in ordered:
        start, end = end, end + array.nbytes
        header[name] = {
            "dtype": SAFETENSORS[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
    content = json.dumps(header, ensure_ascii=False).encode()
    content += b" " * (-len(content) % 8)
    with open(path, "wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        for _, array in ordered:
            file.write(np.ascontiguousarray(array).data)


def read(path: Place) -> Iterator[Tensor]:
    """Yield the tensors of a file, with their fingerprints."""
    file = File(path)
    length = int.from_bytes(file.bytes(0, 8), "little") if file.size >= 8 else 0
    if not 2 <= length <= file.size - 8:
        raise RunError(f"{path} is no file that `numscope weights --out` wrote")
    metadata = members(safetensors_file.header(path, bytes(file.bytes(8, length))).get("__metadata__"))
    content = safetensors_file.header(path, str(metadata.get(_KEY, "{}")).encode())
    if content.get("format") != FORMAT:
        raise RunError(f"{path} is no file that `numscope weights --out` wrote: its format is {content.get('format')}")
    stored = {tensor.name: tensor for tensor in safetensors_file.read(path)}
    try:
        yield from _tensors(content, stored)
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise file.damaged(f"{type(error).__name__}: {error}") from None


def _tensors(content: JsonObject, stored: dict[str, Tensor]) -> Iterator[Tensor]:
    lines = None
    if "hash" in stored:
        sums = stored["sums"].elements().reshape(-1, SUMS)
        lines = Lines(0, stored["hash"].elements().reshape(-1), sums, stored["norm"].elements().reshape(-1))
    at = 0
    for number, entry in enumerate(content["tensors"]):
        shape = check_shape(tuple(entry["shape"]), entry["name"])
        rows: Lines | None = None
        columns: Lines | None = None
        if entry.get("lines") and lines is not None:
            of_rows, of_columns = map(int, entry["lines"])
            if at + of_rows + of_columns > len(lines):
                raise ValueError("lines are missing")
            rows = _some(lines, at, of_rows, shape[-1])
            columns = _some(lines, at + of_rows, of_columns, shape[-2])
            at += of_rows + of_columns
        low, high, mean, l2 = (float(value) if value is not None else np.nan for value in entry["statistics"])
        zero, non_finite = entry["counts"]
        summary = Summary(int(entry["hash"]), low, high, mean, l2, zero, non_finite, None, rows, columns)
        encoding = Encoding(*entry["encoding"]) if entry["encoding"] else None
        read = None
        if f"whole.{number}" in stored:
            kind = numpy_dtype(entry["dtype"]) or np.dtype(np.uint8)
            array = stored[f"whole.{number}"].elements().reshape(-1).view(kind).reshape(shape)
            read = of_array("", array).read
        yield Tensor(entry["name"], entry["dtype"], shape, read, encoding, tuple(entry["stored"]), summary)


def _some(lines: Lines, start: int, count: int, width: int) -> Lines:
    if count < 0:
        raise ValueError("a number of lines is below zero")
    part = slice(start, start + count)
    return Lines(width, lines.hash[part], lines.sums[part], lines.norm[part])
