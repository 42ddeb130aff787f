"""The rows of a comparison's table: in memory while they are few, in Parquet files once they are many.

A row of `pairs` takes about 400 bytes, and a job of many ranks has hundreds of millions. Rows are added place by place, in
any order, and are read in the order of the places: step by step, and rank by rank within. Whoever needs some columns, or a
place after the other, asks for `batches`; `table` is for those who need everything at once.
"""

from __future__ import annotations

import bisect
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import pyarrow.parquet as pq

IN_MEMORY = 128 << 20  # bytes
_GROUP = 1 << 13  # rows, at least, that are written together: a few steps of a small model, one of a large one
_GROUPS = 64  # in a file: whoever opens it reads where they all are
_OPEN, _REMEMBERED = 2, 4  # files that are open, and groups that are kept for the next read


class Key(NamedTuple):
    """The place that rows belong to: a step of a rank."""

    step: int = 0
    rank: int = 0


@dataclass(frozen=True)
class Stored:
    """Where the rows of a place stand in a file."""

    file: str
    group: int
    offset: int


@dataclass(frozen=True)
class Part:
    """The rows of one place."""

    key: Key
    num_rows: int
    held: pa.Table | Stored
    shift: int = 0  # of the columns that are numbers of rows


class Scratch:
    """A folder that is deleted with the last table that has files in it."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp(prefix="numscope-")
        weakref.finalize(self, shutil.rmtree, self.name, True)


class Rows:
    """The rows of one table, in the order of their places; `moved` are the columns that hold numbers of rows of `calls`."""

    def __init__(
        self,
        schema: pa.Schema,
        in_memory: int = IN_MEMORY,
        moved: tuple[str, ...] = (),
        folder: Path | None = None,
        name: str = "rows",
    ) -> None:
        self.schema, self.num_rows = schema, 0
        self.parts: list[Part] = []
        self._moved, self._limit = moved, in_memory
        self._folder, self._name, self._files = folder, name, 0
        self.holds: Scratch | None = None  # where its files are, or those that were attached
        self._bytes = 0
        self._waiting: list[Part] = []  # in memory, to be written
        self._waiting_rows = self._groups = 0
        self._writer: pq.ParquetWriter | None = None
        self._path = ""  # of the file that is being written
        self._begins: list[int] = []
        self._whole: pa.Table | None = None
        self._opened: OrderedDict[str, pq.ParquetFile] = OrderedDict()
        self._read_before: OrderedDict[tuple[str, int, tuple[str, ...]], pa.Table] = OrderedDict()

    @classmethod
    def of(cls, table: pa.Table) -> Rows:
        """Return the rows of a table that is in memory."""
        rows = cls(table.schema)
        rows.parts, rows._whole, rows.num_rows = [Part(Key(), table.num_rows, table)], table, table.num_rows
        rows._begins = [0]
        return rows

    # Adding ---------------------------------------------------------------------------------------------------------

    def add(self, table: pa.Table, key: Key | None = None) -> None:
        """Add the rows of a place; without a key, after all others."""
        part = Part(key if key is not None else Key(len(self.parts)), table.num_rows, table)
        self.num_rows += table.num_rows
        self._bytes += table.nbytes
        self._waiting.append(part)
        self._waiting_rows += table.num_rows
        self._whole = None
        if self._waiting_rows >= _GROUP if self._files else self._bytes > self._limit:
            self._write()

    def attach(self, parts: Sequence[Part]) -> None:
        """Add places whose rows stand in files already."""
        self.parts += parts
        self.num_rows += sum(part.num_rows for part in parts)

    def _write(self) -> None:
        """Write what waits, in groups of rows."""
        waiting, self._waiting, self._waiting_rows, self._bytes = self._waiting, [], 0, 0
        group: list[Part] = []
        rows = 0
        for part in waiting:
            group.append(part)
            rows += part.num_rows
            if rows >= _GROUP:
                self._write_group(group, rows)
                group, rows = [], 0
        self._write_group(group, rows)

    def _write_group(self, group: list[Part], rows: int) -> None:
        if self._writer is None or self._groups == _GROUPS:
            self._next_file()
        assert self._writer is not None
        offset = 0
        for part in group:
            self.parts.append(replace(part, held=Stored(self._path, self._groups, offset)))
            offset += part.num_rows
        if rows:
            self._writer.write_table(pa.concat_tables([part.held for part in group]), row_group_size=rows)
            self._groups += 1

    def _next_file(self) -> None:
        import pyarrow.parquet as pq

        if self._writer is not None:
            self._writer.close()
        if self._folder is None:
            self.holds = Scratch()
            self._folder = Path(self.holds.name)
        strings = [field.name for field in self.schema if pa.types.is_string(field.type)]
        self._path = str(self._folder / f"{self._name}-{self._files:05d}.parquet")
        self._writer = pq.ParquetWriter(self._path, self.schema, compression="lz4", use_dictionary=strings)
        self._files, self._groups = self._files + 1, 0

    def end(self, shifts: Mapping[Key, int] | None = None, to_files: bool = False) -> None:
        """Say that all rows were added; `shifts`: how many rows of `calls` come before those of each place."""
        if (self._files or to_files) and self._waiting:
            self._write()
        self.parts += self._waiting
        self._waiting = []
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self.parts.sort(key=lambda part: part.key)
        if shifts is not None:
            self.parts = [replace(part, shift=shifts.get(part.key, 0)) for part in self.parts]
        self._begins = [0, *accumulate(part.num_rows for part in self.parts)][:-1]

    def begins(self) -> dict[Key, int]:
        """Return how many rows come before those of each place."""
        found: dict[Key, int] = {}
        for part, begin in zip(self.parts, self._begins):
            found.setdefault(part.key, begin)
        return found

    # Reading --------------------------------------------------------------------------------------------------------

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Give all rows, some at a time, of those columns only where they are given."""
        names = tuple(columns or self.schema.names)
        if self._whole is not None:
            yield self._whole.select(names)
            return
        for part in self.parts:
            if part.num_rows:
                yield self._content(part, names)

    def slice(self, begin: int, count: int, columns: Sequence[str]) -> pa.Table:
        """Return some rows that follow each other."""
        names = tuple(columns)
        found: list[pa.Table] = []
        at = max(bisect.bisect_right(self._begins, begin) - 1, 0)
        while count > 0 and at < len(self.parts):
            part, first = self.parts[at], begin - self._begins[at]
            if part.num_rows > first:
                found.append(self._content(part, names).slice(first, count))
                begin, count = begin + found[-1].num_rows, count - found[-1].num_rows
            at += 1
        return pa.concat_tables(found) if found else pa.schema([self.schema.field(one) for one in names]).empty_table()

    def _content(self, part: Part, names: tuple[str, ...]) -> pa.Table:
        """Return the rows of a place."""
        if isinstance(part.held, Stored):
            rows = self._group(part.held, names).slice(part.held.offset, part.num_rows)
        else:
            rows = part.held.select(names)
        for name in self._moved if part.shift else ():
            if name in names:
                at = names.index(name)
                rows = rows.set_column(at, rows.schema.field(at), pc.add(rows[name], pa.scalar(part.shift, pa.int32())))
        return rows

    def _group(self, stored: Stored, names: tuple[str, ...]) -> pa.Table:
        """Return the group of rows in which a place stands."""
        key = (stored.file, stored.group, names)
        if key in self._read_before:
            self._read_before.move_to_end(key)
            return self._read_before[key]
        rows = self._file(stored.file).read_row_group(stored.group, list(names))
        self._read_before[key] = rows
        if len(self._read_before) > _REMEMBERED:
            self._read_before.popitem(last=False)
        return rows

    def _file(self, path: str) -> pq.ParquetFile:
        import pyarrow.parquet as pq

        if path not in self._opened:
            # By path, not by a Python object, which Arrow's threads may release after the interpreter has ended.
            self._opened[path] = pq.ParquetFile(path, memory_map=True)
            if len(self._opened) > _OPEN:
                self._opened.popitem(last=False)
        self._opened.move_to_end(path)
        return self._opened[path]

    def take(self, rows: Sequence[int]) -> pa.Table:
        """Return some rows, in the order given."""
        if self._whole is not None:
            return self._whole.take(pa.array(rows, pa.int64()))
        found, places = [self.schema.empty_table()], list[int]()
        of_part: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            of_part.setdefault(bisect.bisect_right(self._begins, row) - 1, []).append(place)
        for at, here in sorted(of_part.items()):
            part = self._content(self.parts[at], tuple(self.schema.names))
            found.append(part.take(pa.array([rows[place] - self._begins[at] for place in here])))
            places += here
        order = sorted(range(len(places)), key=places.__getitem__)
        return pa.concat_tables(found).take(pa.array(order, pa.int64()))

    def table(self) -> pa.Table:
        """Return all rows as one table."""
        if self._whole is None:
            parts = list(self.batches())
            self._whole = pa.concat_tables(parts) if parts else self.schema.empty_table()
        return self._whole
