"""What the recorder has buffered, as columns: made in the writer's thread, from numbers."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from numscope.fingerprint.columns import Fingerprints

if TYPE_CHECKING:
    from numscope.capture.interned import Shapes, Strings

AGAIN = (
    -2
)  # in the place of a fingerprint's row: the first of those that an earlier step has measured; the next is less
_Numbers = np.ndarray[Any, np.dtype[np.int32]]
_COLUMNS = tuple(Fingerprints.__dataclass_fields__)
_NONE_FINITE = ("min", "max", "mean")  # NaN where there is no finite element


class Lasting:
    """A fingerprint that outlives its step: a later one refers to it, where the tensor is still the same."""

    __slots__ = ("columns", "row")

    def __init__(self) -> None:
        # Where it is; nowhere until the batch that measured the tensor is written, which is before it is asked for.
        self.columns: Mapping[str, Any] = {}
        self.row = 0


def call_columns(strings: Strings, step: int, rows: Sequence[int]) -> Mapping[str, Any]:
    """Return the calls of a batch, in the order in which they began."""
    table = _columns(rows, 13)
    table = table[:, np.argsort(table[0], kind="stable")]
    text = strings.column
    return {
        "step": np.full(len(table[0]), step, np.int32),
        "order": table[0],
        "name": text(table[1]),
        "kind": text(table[2]),
        "module": text(table[3]),
        "module_class": text(table[4]),
        "phase": text(table[5]),
        "parent": nullable(table[6]),
        "forward": nullable(table[7]),
        "arguments": text(table[8]),
        "stack": nullable(table[9]),
        "recompute": table[10].astype(bool),
        "error": text(table[11]),
        "thread": table[12],
    }


def slot_columns(strings: Strings, step: int, rows: Sequence[int]) -> Mapping[str, Any]:
    """Return the slots of a batch."""
    table = _columns(rows, 4)
    return {
        "step": np.full(len(table[0]), step, np.int32),
        "call": table[0],
        "slot": strings.column(table[1]),
        "tensor": nullable(table[2]),
        "note": strings.column(table[3]),
    }


def tensor_columns(
    strings: Strings,
    shapes: Shapes,
    step: int,
    rows: Sequence[int],
    prints: Fingerprints | None,
    again: Sequence[Lasting] = (),
    lasting: Sequence[tuple[int, Lasting]] = (),
) -> Mapping[str, Any]:
    """Return the tensors of a batch; `lasting` takes the fingerprints that later steps may refer to."""
    table = _columns(rows, 6)
    shape, elements = shapes.columns(table[2])
    columns: dict[str, Any] = {
        "step": np.full(len(table[0]), step, np.int32),
        "tensor": table[0],
        "dtype": strings.column(table[1]),
        "shape": shape,
        "device": strings.column(table[3]),
        "placement": strings.column(table[5]),
    }
    if prints is None:
        return columns | {"elements": elements}
    values = _fingerprints(table[4], prints, again)
    if lasting:
        _remember(table[0], values, lasting)
    for name in _NONE_FINITE:
        values[name] = pa.array(values[name], mask=np.isnan(values[name]))
    return columns | values


def _fingerprints(row: _Numbers, prints: Fingerprints, again: Sequence[Lasting]) -> dict[str, Any]:
    """Return the fingerprints' columns: of those measured in this batch, and of those measured in an earlier step."""
    if not again:
        return {name: getattr(prints, name)[row] for name in _COLUMNS}
    here = row >= 0
    found: dict[str, Any] = {}
    for name in _COLUMNS:
        measured = getattr(prints, name)
        values = found[name] = np.empty((len(row), *measured.shape[1:]), measured.dtype)
        values[here] = measured[row[here]]
    sources: dict[int, tuple[Mapping[str, Any], list[int], list[int]]] = {}  # most come from one optimizer's step
    for place in np.flatnonzero(~here).tolist():
        one = again[AGAIN - int(row[place])]
        _, places, rows = sources.setdefault(id(one.columns), (one.columns, [], []))
        places.append(place)
        rows.append(one.row)
    for columns, places, rows in sources.values():
        for name in _COLUMNS:
            found[name][places] = columns[name][rows]
    return found


def _remember(numbers: _Numbers, values: Mapping[str, Any], lasting: Sequence[tuple[int, Lasting]]) -> None:
    """Give the fingerprints that later steps may refer to, and no more than those, a place that outlives the batch."""
    places = {number: place for place, number in enumerate(numbers.tolist())}
    rows = np.array([places[number] for number, _ in lasting])
    kept = {name: values[name][rows] for name in _COLUMNS}
    for row, (_, one) in enumerate(lasting):
        one.columns, one.row = kept, row


def _columns(rows: Sequence[int], width: int) -> _Numbers:
    """Return the columns of rows that follow each other."""
    # The fastest way from Python's numbers to an array, and all of it with Python's lock held.
    numbers = np.frombuffer(struct.pack(f"={len(rows)}i", *rows), np.int32)
    return np.ascontiguousarray(numbers.reshape(-1, width).T)


def nullable(ids: _Numbers) -> pa.Array:
    """Return numbers as a column; a negative one is null."""
    if not len(ids) or ids.min() >= 0:
        return pa.array(ids)
    if ids.max() < 0:
        return pa.nulls(len(ids), pa.int32())
    return pa.array(ids, mask=ids < 0)
