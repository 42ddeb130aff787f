"""What the recorder has buffered, as columns: made in the writer's thread, from numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from numscope.fingerprint.columns import Fingerprints

if TYPE_CHECKING:
    from numscope.capture.interned import Strings

AGAIN = (
    -2
)  # in the place of a fingerprint's row: the first of those that an earlier step has measured; the next is less
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
    table = _matrix(rows, 13)
    table = table[np.argsort(table[:, 0], kind="stable")]
    text = strings.column
    return {
        "step": np.full(len(table), step, np.int32),
        "order": table[:, 0].astype(np.int32),
        "name": text(table[:, 1]),
        "kind": text(table[:, 2]),
        "module": text(table[:, 3]),
        "module_class": text(table[:, 4]),
        "phase": text(table[:, 5]),
        "parent": nullable(table[:, 6]),
        "forward": nullable(table[:, 7]),
        "arguments": text(table[:, 8]),
        "stack": nullable(table[:, 9]),
        "recompute": table[:, 10].astype(bool),
        "error": text(table[:, 11]),
        "thread": table[:, 12].astype(np.int32),
    }


def slot_columns(strings: Strings, step: int, rows: Sequence[int]) -> Mapping[str, Any]:
    """Return the slots of a batch."""
    table = _matrix(rows, 4)
    return {
        "step": np.full(len(table), step, np.int32),
        "call": table[:, 0].astype(np.int32),
        "slot": strings.column(table[:, 1]),
        "tensor": nullable(table[:, 2]),
        "note": strings.column(table[:, 3]),
    }


def tensor_columns(
    strings: Strings,
    shapes: list[list[int]],
    step: int,
    rows: Sequence[int],
    prints: Fingerprints | None,
    again: Sequence[Lasting] = (),
    lasting: Sequence[tuple[int, Lasting]] = (),
) -> Mapping[str, Any]:
    """Return the tensors of a batch; `lasting` takes the fingerprints that later steps may refer to."""
    table = _matrix(rows, 6)
    columns: dict[str, Any] = {
        "step": np.full(len(table), step, np.int32),
        "tensor": table[:, 0].astype(np.int32),
        "dtype": strings.column(table[:, 1]),
        "shape": pa.array(shapes, pa.list_(pa.int64())).take(pa.array(table[:, 2])),
        "device": strings.column(table[:, 3]),
        "placement": strings.column(table[:, 5]),
    }
    if prints is None:
        sizes = np.array([math.prod(shape) for shape in shapes], np.int64)
        columns["elements"] = sizes[table[:, 2]] if len(table) else np.empty(0, np.int64)
        return columns
    values = _fingerprints(table, prints, again)
    if lasting:
        _remember(table, values, lasting)
    for name in _NONE_FINITE:
        values[name] = pa.array(values[name], mask=np.isnan(values[name]))
    return columns | values


def _fingerprints(table: Any, prints: Fingerprints, again: Sequence[Lasting]) -> dict[str, Any]:
    """Return the fingerprints' columns: of those measured in this batch, and of those measured in an earlier step."""
    row = table[:, 4]
    if not again:
        return {name: getattr(prints, name)[row] for name in _COLUMNS}
    here = row >= 0
    found: dict[str, Any] = {}
    for name in _COLUMNS:
        measured = getattr(prints, name)
        values = found[name] = np.empty((len(table), *measured.shape[1:]), measured.dtype)
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


def _remember(table: Any, values: Mapping[str, Any], lasting: Sequence[tuple[int, Lasting]]) -> None:
    """Give the fingerprints that later steps may refer to, and no more than those, a place that outlives the batch."""
    places = {int(number): place for place, number in enumerate(table[:, 0])}
    rows = np.array([places[number] for number, _ in lasting])
    kept = {name: values[name][rows] for name in _COLUMNS}
    for row, (_, one) in enumerate(lasting):
        one.columns, one.row = kept, row


def _matrix(rows: Sequence[int], width: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.fromiter(rows, np.int64, len(rows)).reshape(-1, width)


def nullable(ids: Any) -> pa.Array:
    """Return numbers as a column; a negative one is null."""
    numbers = np.asarray(ids, np.int32)
    return pa.array(numbers, mask=numbers < 0)
