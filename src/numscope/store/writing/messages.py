"""Batches as messages of an Arrow stream; one that repeats the one before is its bytes with other numbers in them.

Steps mostly repeat each other: the same calls show tensors of the same shapes. What differs is the step and the fingerprints:
columns of numbers, whose places in the bytes are known. To fill these in takes a third of the time that it takes to make a
record batch and its message, and hands Python's lock to and fro less often, as nothing of Arrow is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from numscope.store.batch import NULL_IF_NAN, Columns, is_wide, low_part, record_batch
from numscope.store.schema import SKETCH

_KNOWN = 7  # batches a step, at most, that are looked for in the next: as many as capture looks for
_Key = tuple[Any, ...]


@dataclass(frozen=True)
class Message:
    """Some rows of a table, as they stand in its stream."""

    rows: int
    content: memoryview


def message_of(batch: pa.RecordBatch) -> Message:
    """Return a record batch as a message."""
    return Message(batch.num_rows, memoryview(batch.serialize()))


class Messages:
    """Makes messages of the batches of one table, one after the other."""

    def __init__(self, table: str) -> None:
        self._table = table
        # The last batches, by what a batch must have to repeat one: its columns, and the stencil of what has come twice.
        self._known: dict[_Key, tuple[list[pa.Array], _Stencil | None]] = {}

    def of(self, columns: Columns, at_once: bool) -> Message:
        """Return a batch as a message; at_once says that it is written before the next one is asked for."""
        key = _key(columns) if at_once else None
        if key is None:
            return message_of(record_batch(self._table, columns))
        known = self._known.pop(key, None)
        stencil = known[1] if known is not None else None
        if known is not None and stencil is not None and stencil.fill(columns):
            self._known[key] = known  # the last of them
            return stencil.message
        batch = record_batch(self._table, columns)
        # No stencil of what has come once: a job whose steps all differ has nothing of it.
        stencil = _Stencil.of(batch, columns) if known is not None else None
        self._known[key] = [values for values in columns.values() if isinstance(values, pa.Array)], stencil
        if len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]
        return message_of(batch)


def _key(columns: Columns) -> _Key | None:
    """Return what the batches that repeat each other share: the same columns, or as many numbers in their place.

    A column is known by its address, so that who keeps the key must keep the column.
    """
    key: list[Any] = []
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            key += (name, values.shape, values.dtype)
        elif values is None or isinstance(values, pa.Array):
            key += (name, id(values))
        else:
            return None
    return tuple(key)


class _Stencil:
    """The bytes of a message, and the places of the numbers in them that the next one may have other values for."""

    def __init__(self, batch: pa.RecordBatch, replaced: Mapping[str, NDArray[Any]], wide: NDArray[np.intp]) -> None:
        content = np.frombuffer(batch.serialize(), np.uint8).copy()
        self.message = Message(batch.num_rows, content.data)
        names = [*replaced, "sketch_low"] if len(wide) else list(replaced)
        self._places = dict(zip(names, _places(content, batch.schema, names), strict=True))
        self._wide = wide  # the rows that have a low part of their sketch

    @classmethod
    def of(cls, batch: pa.RecordBatch, columns: Columns) -> _Stencil | None:
        """Return the stencil of a batch made of these columns, or None where others' values may need another place."""
        replaced = {name: values for name, values in columns.items() if isinstance(values, np.ndarray)}
        for name, values in replaced.items():
            if batch.column(name).null_count or (values.dtype != _dtype(batch.schema, name) and name != "sketch"):
                return None
        wide = np.empty(0, np.intp)
        if "sketch" in replaced and columns.get("sketch_low") is None:
            wide = np.flatnonzero(is_wide(batch.column("dtype")))
            if batch.column("sketch_low").null_count != batch.num_rows - len(wide):
                return None
        return cls(batch, replaced, wide)

    def fill(self, columns: Columns) -> bool:
        """Put in the values of a batch that repeats this one; False where they do not fit, and the bytes are spoilt."""
        with np.errstate(over="ignore"):  # of a sketch: see record_batch
            for name, place in self._places.items():
                values = columns[name] if name != "sketch_low" else low_part(columns["sketch"][self._wide])
                if name in NULL_IF_NAN and np.isnan(values).any():
                    return False
                place[:] = values
        return not len(self._wide) or not np.isnan(columns["sketch"][self._wide, 0]).any()


def _dtype(schema: pa.Schema, name: str) -> np.dtype[Any] | None:
    """Return the dtype of a column's numbers as they lie in a message, or None where they are no plain numbers."""
    kind = schema.field(name).type
    if pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    letter = "f" if pa.types.is_floating(kind) else "i" if pa.types.is_signed_integer(kind) else "u"
    return np.dtype(f"{letter}{kind.bit_width // 8}") if letter != "u" or pa.types.is_integer(kind) else None


def _places(content: NDArray[np.uint8], schema: pa.Schema, names: Iterable[str]) -> Iterator[NDArray[Any]]:
    """Give the values of some columns as they lie in a message."""
    whole = pa.py_buffer(content)
    batch = pa.ipc.read_record_batch(whole, schema)
    for name in names:
        values = batch.column(name).buffers()[-1]
        start = values.address - whole.address
        place = content[start : start + values.size].view(_dtype(schema, name) or np.float32)
        yield place.reshape(-1, SKETCH) if name.startswith("sketch") else place
