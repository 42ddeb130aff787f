"""Makes messages of an Arrow stream from batches, and reuses the bytes of a message for a batch that repeats it.

Most steps have the same calls with tensors of the same shapes; only the step and the fingerprints differ. These are
columns of numbers, whose positions in the bytes are known. Overwriting them takes a third of the time of making a record
batch and its message, and releases Python's lock less often, because Arrow is not called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from numscope.core.dtypes import AnyArray, AnyDtype
from numscope.store.batch import NULL_IF_NAN, Columns, is_wide, low_part, record_batch
from numscope.store.schema import SKETCH

_REMEMBERED = 7  # batches that are recognised when they are repeated: as many as capture recognises
_Key = tuple[object, ...]


@dataclass(frozen=True)
class Message:
    """Some rows of a table, as the bytes of its stream."""

    rows: int
    content: memoryview


def message_of(batch: pa.RecordBatch) -> Message:
    """Return a record batch as a message."""
    return Message(batch.num_rows, memoryview(batch.serialize()))


class _Remembered(NamedTuple):
    """A batch that may be repeated."""

    columns: list[pa.Array]  # kept alive, because the key has their addresses
    stencil: _Stencil | None  # of a batch that was repeated once


class Messages:
    """Makes the messages of the batches of one table in order."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._remembered: dict[_Key, _Remembered] = {}  # the last used at the end

    def of(self, columns: Columns, at_once: bool) -> Message:
        """Return a batch as a message; `at_once` says that it is written before the next one is made."""
        key = _key(columns) if at_once else None
        if key is None:
            return message_of(record_batch(self._table, columns))
        remembered = self._remembered.pop(key, None)
        stencil = remembered.stencil if remembered is not None else None
        if remembered is not None and stencil is not None and stencil.fill(columns):
            self._remembered[key] = remembered
            return stencil.message
        batch = record_batch(self._table, columns)
        # No stencil of a batch that came once: a job whose steps all differ would never use it.
        stencil = _Stencil.of(batch, columns) if remembered is not None else None
        arrays = [values for values in columns.values() if isinstance(values, pa.Array)]
        self._remembered[key] = _Remembered(arrays, stencil)
        if len(self._remembered) > _REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return message_of(batch)


def _key(columns: Columns) -> _Key | None:
    """Return a key that batches share which repeat each other: the same Arrow columns, and numbers of the same shape.

    The key has the addresses of Arrow columns, so they must be kept alive with it.
    """
    key: list[object] = []
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            key += (name, values.shape, values.dtype)
        elif values is None or isinstance(values, pa.Array):
            key += (name, id(values))
        else:
            return None
    return tuple(key)


class _Stencil:
    """The bytes of a message, and views of the numbers in them that the next message replaces."""

    def __init__(self, batch: pa.RecordBatch, replaced: Mapping[str, AnyArray], wide: NDArray[np.intp]) -> None:
        content = np.frombuffer(batch.serialize(), np.uint8).copy()
        self.message = Message(batch.num_rows, content.data)
        names = [*replaced, "sketch_low"] if len(wide) else list(replaced)
        self._views = dict(zip(names, _views(content, batch.schema, names), strict=True))
        self._wide = wide  # the rows that have a low part of their sketch

    @classmethod
    def of(cls, batch: pa.RecordBatch, columns: Columns) -> _Stencil | None:
        """Return the stencil of a batch made of these columns, or None where other values may not fit its bytes."""
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
        """Write the values of a batch that repeats this one; where they do not fit, return False and leave invalid bytes."""
        with np.errstate(over="ignore"):  # of a sketch: see batch._sketch
            for name, view in self._views.items():
                values = columns[name] if name != "sketch_low" else low_part(columns["sketch"][self._wide])
                if name in NULL_IF_NAN and np.isnan(values).any():
                    return False
                view[:] = values
        return not len(self._wide) or not np.isnan(columns["sketch"][self._wide, 0]).any()


def _dtype(schema: pa.Schema, name: str) -> AnyDtype | None:
    """Return the dtype of a column's numbers in a message, or None where the column has no plain numbers."""
    kind = schema.field(name).type
    if pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    letter = "f" if pa.types.is_floating(kind) else "i" if pa.types.is_signed_integer(kind) else "u"
    return np.dtype(f"{letter}{kind.bit_width // 8}") if letter != "u" or pa.types.is_integer(kind) else None


def _views(content: NDArray[np.uint8], schema: pa.Schema, names: Iterable[str]) -> Iterator[AnyArray]:
    """Yield the values of some columns as views of a message's bytes."""
    whole = pa.py_buffer(content)
    batch = pa.ipc.read_record_batch(whole, schema)
    for name in names:
        values = batch.column(name).buffers()[-1]
        start = values.address - whole.address
        view = content[start : start + values.size].view(_dtype(schema, name) or np.float32)
        yield view.reshape(-1, SKETCH) if name.startswith("sketch") else view
