"""Batches: the rows and data that capture hands to the writer, and their conversion to Arrow record batches.

The conversion runs on the writer's thread while the user's job goes on. It works on whole columns, because numpy and
Arrow release the interpreter's lock, and a loop over rows does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from numscope.core.dtypes import AnyArray, AnyDtype
from numscope.store.schema import SKETCH, TABLES

# A sequence, a numpy array or an array of Arrow, which has no types.
ColumnValues: TypeAlias = Any
Columns = Mapping[str, ColumnValues]

_WIDE = pa.array(["float64", "complex128", "int64", "uint64"])
# Columns in which NaN means that a tensor has no finite element; on disk that is null.
NULL_IF_NAN = frozenset({"min", "max", "mean", "l2"})
_FIELDS = {table: [(fld.name, fld.type) for fld in schema] for table, schema in TABLES.items()}


@dataclass(frozen=True)
class Sample:
    """A part of a tensor's elements (head, every k-th, tail), kept instead of all of them."""

    array: AnyArray | OnDevice


@dataclass(frozen=True)
class OnDevice:
    """An array that is not in the host's memory yet; the thread that writes it fetches its bytes."""

    dtype: AnyDtype
    shape: tuple[int, ...]
    data: Any
    # Yields the bytes of several such arrays in order, in pieces; a piece is valid until the next one is asked for.
    fetch: Callable[[Sequence[Any]], Iterator[memoryview]]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True)
class View:
    """The data of a tensor that is a view of another kept tensor of its step: the position of its elements in that one."""

    tensor: int  # the number of the other tensor
    offset: int  # in elements of the other tensor in row-major order, as the strides are
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """Rows for the tables of one step, and the data of those tensors that are kept.

    Each table maps a column of `store.schema` to a sequence, a numpy array or an Arrow array (a DictionaryArray for
    repeated strings is the cheapest); a missing column is null. `data` maps the number of a tensor in `tensors` to its
    array, on the host or on a device, to a Sample, or to a View of an earlier one. The writer owns a batch: nobody may
    change it after `write`.
    """

    calls: Columns = field(default_factory=dict)
    slots: Columns = field(default_factory=dict)
    tensors: Columns = field(default_factory=dict)
    stacks: Columns = field(default_factory=dict)
    data: Mapping[int, AnyArray | OnDevice | Sample | View] = field(default_factory=dict)
    checks: Columns = field(default_factory=dict)

    def nbytes(self) -> int:
        """Estimate the memory that the batch holds."""
        size = 0
        for table in (self.calls, self.slots, self.tensors, self.stacks, self.checks):
            for values in table.values():
                nbytes = getattr(values, "nbytes", None)
                size += (64 * len(values) if values is not None else 0) if nbytes is None else nbytes
        return size + sum(array_of(value).nbytes for value in self.data.values() if not isinstance(value, View))


def array_of(value: AnyArray | OnDevice | Sample | View) -> AnyArray | OnDevice:
    """Return the array that is to be stored."""
    if isinstance(value, View):
        raise TypeError("a view has no data of its own")
    return value.array if isinstance(value, Sample) else value


def record_batch(table: str, columns: Columns) -> pa.RecordBatch:
    """Return the columns as a record batch of that table's schema."""
    fields = _FIELDS[table]
    rows = max((len(values) for values in columns.values() if values is not None), default=0)
    arrays: list[pa.Array] = []
    used = 0
    for at, (name, kind) in enumerate(fields):
        used += name in columns
        values = columns.get(name)
        if name == "sketch" and (values is None or isinstance(values, np.ndarray)):
            array = _no_sketch(rows) if values is None else _sketch(values)
        elif name == "sketch_low" and values is None and isinstance(columns.get("sketch"), np.ndarray):
            array = _sketch_low(columns["sketch"], arrays[TABLES[table].get_field_index("dtype")])
        elif values is None:
            array = _nulls(table, at, rows)
        else:
            array = column(values, kind, rows, nan_is_null=name in NULL_IF_NAN)
        if len(array) != rows:
            raise ValueError(f"table {table}: column {name} has {len(array)} rows, the others {rows}")
        arrays.append(array)
    if used < len(columns):
        unknown = set(columns) - {name for name, _ in fields}
        raise ValueError(f"table {table} has no column {sorted(unknown)[0]!r}")
    return pa.RecordBatch.from_arrays(arrays, schema=TABLES[table])


def column(values: ColumnValues, kind: pa.DataType, rows: int, nan_is_null: bool = False) -> pa.Array:
    """Return values, in any of the forms a Batch may have, as an Arrow array of the type."""
    if values is None:
        return pa.nulls(rows, kind)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary.take(values.indices)
    if isinstance(values, pa.Array):
        return values if values.type == kind else values.cast(kind)
    if isinstance(values, np.ndarray) and values.dtype != object:
        return pa.array(values, kind, from_pandas=nan_is_null)
    return pa.array(values, kind, from_pandas=nan_is_null or None)


def _sketch(values: NDArray[np.float64]) -> pa.Array:
    with np.errstate(over="ignore"):  # beyond float32 becomes infinity: estimates are unknown, not wrong
        flat = pa.array(np.ascontiguousarray(values, np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, SKETCH)


def is_wide(dtype: pa.Array) -> NDArray[np.bool_]:
    """Tell for each dtype whether its sketch needs more digits than float32 has; `sketch_low` holds the rest."""
    wide: NDArray[np.bool_] = pc.is_in(dtype, _WIDE).to_numpy(zero_copy_only=False)
    return wide


def low_part(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the part of sketches that float32 cannot hold."""
    with np.errstate(over="ignore", invalid="ignore"):
        rest = (values - values.astype(np.float32)).astype(np.float32)
    rest[~np.isfinite(rest)] = 0
    return rest


def _sketch_low(values: NDArray[np.float64], dtype: pa.Array) -> pa.Array:
    wide = is_wide(dtype) & ~np.isnan(values[:, 0])
    low = low_part(values[wide])
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum(wide, out=ends[1:])
    there = np.packbits(wide, bitorder="little")
    buffers = [pa.py_buffer(part) for part in (there, ends * (low.itemsize * SKETCH), low)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


# Most steps have as many rows as the one before. A complete set of null columns is 19.
@lru_cache(maxsize=32)
def _nulls(table: str, at: int, rows: int) -> pa.Array:
    return pa.nulls(rows, TABLES[table].field(at).type)


@lru_cache(maxsize=1)
def _no_sketch(rows: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.full(rows * SKETCH, np.nan, np.float32)), SKETCH)
