"""The rows of a comparison's table: in memory while they are few, in a temporary Parquet file once they are many.

A row of `pairs` takes about 400 bytes, and a long run has tens of millions. Whoever needs some columns, or a step after
the other, asks for `batches`; `table` is for those who need everything at once.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import pyarrow.parquet as pq

IN_MEMORY = 128 << 20  # bytes
_GROUP = 1 << 16  # rows that are written together


class Rows:
    """The rows of one table, in the order in which they were added."""

    def __init__(self, schema: pa.Schema, in_memory: int = IN_MEMORY) -> None:
        self.schema, self.num_rows = schema, 0
        self._limit = in_memory
        self._parts: list[pa.Table] = []
        self._bytes = self._waiting = 0
        self._path: str | None = None
        self._writer: pq.ParquetWriter | None = None
        self._whole: pa.Table | None = None

    @classmethod
    def of(cls, table: pa.Table) -> Rows:
        """Return the rows of a table that is in memory."""
        rows = cls(table.schema)
        rows._parts, rows._whole, rows.num_rows = [table], table, table.num_rows
        return rows

    def add(self, table: pa.Table) -> None:
        """Add rows."""
        self._parts.append(table)
        self._whole = None
        self.num_rows += table.num_rows
        self._waiting += table.num_rows
        self._bytes += table.nbytes
        if self._writer is not None and self._waiting >= _GROUP:
            self._write()
        elif self._writer is None and self._bytes > self._limit:
            self._begin()
            self._write()

    def _begin(self) -> None:
        import pyarrow.parquet as pq

        strings = [field.name for field in self.schema if pa.types.is_string(field.type)]
        handle, self._path = tempfile.mkstemp(prefix="numscope-", suffix=".parquet")
        os.close(handle)
        weakref.finalize(self, os.unlink, self._path)
        self._writer = pq.ParquetWriter(self._path, self.schema, compression="lz4", use_dictionary=strings)

    def _write(self) -> None:
        assert self._writer is not None
        if self._parts:
            self._writer.write_table(pa.concat_tables(self._parts), row_group_size=_GROUP)
        self._parts, self._waiting = [], 0

    def end(self) -> None:
        """Say that all rows were added."""
        if self._writer is not None:
            self._write()
            self._writer.close()
            self._writer = None

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Give all rows, some at a time, of those columns only where they are given."""
        names = list(columns or self.schema.names)
        if self._path is None or self._whole is not None:
            yield from (part.select(names) for part in ([self._whole] if self._whole is not None else self._parts))
            return
        source = self._read()
        for group in range(source.num_row_groups):
            yield source.read_row_group(group, names)

    def _read(self) -> pq.ParquetFile:
        import pyarrow.parquet as pq

        # By path, not by a Python object, which Arrow's threads may release after the interpreter has ended.
        return pq.ParquetFile(self._path, memory_map=True)

    def take(self, rows: Sequence[int]) -> pa.Table:
        """Return some rows, in the order given."""
        if self._path is None or self._whole is not None:
            parts = [self._whole] if self._whole is not None else self._parts
            groups = [(part.num_rows, part) for part in parts]
        else:
            source = self._read()
            counts = [source.metadata.row_group(group).num_rows for group in range(source.num_row_groups)]
            groups = [(count, group) for group, count in enumerate(counts)]
        found, places, begin = [self.schema.empty_table()], [], 0
        for count, group in groups:
            here = [(row - begin, place) for place, row in enumerate(rows) if begin <= row < begin + count]
            begin += count
            if here:
                part = source.read_row_group(group) if isinstance(group, int) else group
                found.append(part.take(pa.array([row for row, _ in here])))
                places += [place for _, place in here]
        order = sorted(range(len(places)), key=places.__getitem__)
        return pa.concat_tables(found).take(pa.array(order, pa.int64()))

    def table(self) -> pa.Table:
        """Return all rows as one table."""
        if self._whole is None:
            parts = list(self.batches())
            self._whole = pa.concat_tables(parts) if parts else self.schema.empty_table()
        return self._whole
