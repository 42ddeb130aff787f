"""Reads the tables of one rank, whose segments may be open, being closed, closed, or cut off by a kill."""

from __future__ import annotations

import json
import mmap
import zlib
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from numscope.core.errors import RunError
from numscope.core.json_value import JsonObject
from numscope.store.checksums import CURE, MEMBER, Checked, footer_crc, is_intact, read_stream_checksums
from numscope.store.rundir import STEPS, read_rank
from numscope.store.schema import TABLES
from numscope.store.segments import CHECKSUMS, checksums_path, parquet_path, stream_path
from numscope.store.table_sizes import check_parquet, is_packed

_REMEMBERED = 4  # row groups, at most, that are kept in memory for the next read
_UNREADABLE = (OSError, ValueError, KeyError, pa.ArrowException)


class RowRange(NamedTuple):
    """The rows of a step in a table of its segment."""

    start: int
    stop: int


@dataclass(frozen=True)
class StepLine:
    """A line of steps.jsonl: a complete step, and its rows in each table."""

    step: int
    segment: int
    rows: dict[str, RowRange]
    skipped: dict[str, int]
    faults: int
    time: float
    seconds: float


class RankTables:
    """The tables of one rank, read when asked for; its steps are those that were complete when it was opened.

    `runs` are the ids of the run that it should belong to; a run of 0.1.0 has none, and no checksums either.
    """

    def __init__(self, directory: Path, runs: Set[str] | None = None) -> None:
        self.directory = directory
        self.facts = read_rank(directory)
        self._id = str(self.facts.get("id", "")) if runs is not None else None
        if runs is not None and self.facts.get("run") not in {None, *runs}:
            raise RunError(f"{directory} belongs to another run than {directory.parent / 'manifest.json'}: {CURE}")
        # Segments before lines: a segment that begins in between is then known from the lines of its complete steps.
        segments = _list_segments(directory)
        self.lines = _read_lines(directory / STEPS, self._id)
        expected = int(self.facts.get("steps", 0)) if self.facts.get("end") else 0
        if len(self.lines) < expected:
            raise RunError(f"{directory / STEPS} is damaged ({len(self.lines)} of {expected} lines are there): {CURE}")
        self._segments = sorted(segments | {line.segment for line in self.lines})
        self._open: dict[int, dict[str, _Parquet | _Stream]] = {}

    def close(self) -> None:
        """Close the files: a job of many ranks has more of them than there is room for."""
        self._open.clear()

    def segments(self) -> list[int]:
        """Return the numbers of the segments, in order."""
        return self._segments

    def groups(self) -> list[list[int]]:
        """Group the segments so that no step is in two groups: a step that was ended twice may be in two segments."""
        steps: dict[int, set[int]] = {segment: set() for segment in self.segments()}
        for line in self.lines:
            steps[line.segment].add(line.step)
        if steps:
            steps[max(steps)].update(pc.unique(self.tail("calls")["step"]).to_pylist())
        groups: list[list[int]] = []
        seen: set[int] = set()
        for segment, here in steps.items():
            if groups and seen & here:
                groups[-1].append(segment)
                seen |= here
            else:
                groups.append([segment])
                seen = set(here)
        return groups

    def group(self, segments: list[int], table: str, columns: list[str] | None = None) -> pa.Table:
        """Return all rows of some segments."""
        parts = [self.segment(segment, table, columns) for segment in segments]
        return parts[0] if len(parts) == 1 else pa.concat_tables(parts)

    def step(self, step: int, table: str, columns: list[str] | None = None) -> pa.Table:
        """Return the rows of a step, of all columns or only of these; of an incomplete step those written so far."""
        parts = [self.read(line.segment, table, *line.rows[table], columns) for line in self.lines if line.step == step]
        if not parts:
            tail = self.tail(table)
            tail = tail.filter(pc.equal(tail["step"], step))
            parts = [tail if columns is None else tail.select(columns)]
        return parts[0] if len(parts) == 1 else pa.concat_tables(parts)

    def tail(self, table: str) -> pa.Table:
        """Return the rows of the last segment that belong to no complete step."""
        segments = self.segments()
        if not segments:
            return TABLES[table].empty_table()
        stops = [line.rows[table].stop for line in self.lines if line.segment == segments[-1]]
        return self.read(segments[-1], table, max(stops, default=0), None)

    def segment(self, segment: int, table: str, columns: list[str] | None = None) -> pa.Table:
        """Return all rows of a segment, of all columns or only of these."""
        stops = [line.rows[table].stop for line in self.lines if line.segment == segment]
        rows = self.read(segment, table, 0, None, columns)
        if rows.num_rows < max(stops, default=0):
            raise self._short(segment, table, rows.num_rows, max(stops))
        return rows

    def read(
        self, segment: int, table: str, start: int, stop: int | None, columns: list[str] | None = None
    ) -> pa.Table:
        """Return a range of rows of a segment's table; without a stop, to its end."""
        source = self._source(segment, table)
        rows = source.read(start, stop, columns) if source else TABLES[table].empty_table()
        if stop is not None and rows.num_rows < stop - start:
            raise self._short(segment, table, start + rows.num_rows, stop)
        return rows

    def _source(self, segment: int, table: str) -> _Parquet | _Stream | None:
        if segment not in self._open:
            # All tables at once, and slots before the calls and tensors that they refer to: while a job goes on
            # writing, every slot that is read then has its call and its tensor.
            # And all of one state: the bytes of each stream that the same line of checksums counts.
            checked = None if self._id is None else self._checked(segment)
            names = ("checks", "slots", "calls", "tensors", "stacks")
            sources = {name: self._find(segment, name, checked) for name in names}
            self._open[segment] = {name: source for name, source in sources.items() if source is not None}
            self._forget(segment)
        return self._open[segment].get(table)

    def _forget(self, segment: int) -> None:
        """Close the other closed segments: their pages and row groups would fill the memory."""
        for other in [number for number in self._open if number not in (segment, self._segments[-1])]:
            if all(isinstance(source, _Parquet) for source in self._open[other].values()):
                del self._open[other]

    def _find(self, segment: int, table: str, checked: dict[str, Checked] | None) -> _Parquet | _Stream | None:
        closed, stream = parquet_path(self.directory, segment, table), stream_path(self.directory, segment, table)
        if not closed.parent.exists():
            try:
                return _Stream(stream, None if checked is None else checked.get(table, Checked(0, 0)))
            except FileNotFoundError:  # not begun, or closed since the check above
                if not closed.parent.exists() and checked and table in checked:
                    raise RunError(f"{stream} is missing: {CURE}") from None
        if not closed.parent.exists():
            return None
        footers = None if self._id is None else self._footers(segment)
        if not closed.exists():
            if footers and table in footers:
                raise RunError(f"{closed} is missing: {CURE}")
            return None
        return _Parquet(closed, None if footers is None else footers.get(table, Checked(0, 0)))

    def _checked(self, segment: int) -> dict[str, Checked]:
        """Return how much of each stream of an open segment is whole."""
        path = checksums_path(self.directory, segment)
        try:
            return read_stream_checksums(path, self._id or "")
        except FileNotFoundError:
            closed = parquet_path(self.directory, segment, "calls").parent
            if any(self.directory.glob(f"{segment:06d}.*.arrows")) and not closed.exists():
                raise RunError(f"{path} is missing: {CURE}") from None
            return {}

    def _footers(self, segment: int) -> dict[str, Checked]:
        """Return the size and the CRC of the footer of each table of a closed segment."""
        path = parquet_path(self.directory, segment, "calls").with_name(CHECKSUMS)
        try:
            footers = json.loads(path.read_bytes())
            if is_intact(footers, f"{self._id}/{segment}", needed=True):
                return {table: Checked(*map(int, value)) for table, value in footers.items() if table != MEMBER}
        except FileNotFoundError:
            raise RunError(f"{path} is missing: {CURE}") from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise RunError(f"{path} is damaged ({error}): {CURE}") from error
        raise RunError(f"{path} is damaged, or another run's (its checksum is another): {CURE}")

    def _short(self, segment: int, table: str, rows: int, expected: int) -> RunError:
        path = parquet_path(self.directory, segment, table)
        if not path.parent.exists():
            path = stream_path(self.directory, segment, table)
        what = "is damaged" if path.exists() else "is missing"
        return RunError(f"{path} {what} ({rows} of {expected} rows are there): {CURE}")


class _RowGroups(NamedTuple):
    """The rows of the row groups from `first` to `last`."""

    first: int
    last: int
    rows: pa.Table


class _Parquet:
    """A table of a closed segment."""

    def __init__(self, path: Path, footer: Checked | None) -> None:
        self._path = path
        self._cached: _RowGroups | None = None
        try:
            if footer is not None and footer_crc(path) != footer:
                raise ValueError("its size or the checksum of its footer is another")
            self._file = pq.ParquetFile(path, memory_map=True, page_checksum_verification=True)
            _conform(self._file.schema_arrow.empty_table(), path.stem)
            check_parquet(self._file, path)
            counts = [self._file.metadata.row_group(i).num_rows for i in range(self._file.metadata.num_row_groups)]
        except _UNREADABLE as error:
            raise self._damaged(error) from error
        self._stops: list[int] = []
        for count in counts:
            self._stops.append(count + (self._stops[-1] if self._stops else 0))
        self.rows = self._stops[-1] if self._stops else 0

    def read(self, start: int, stop: int | None, columns: list[str] | None) -> pa.Table:
        stop = self.rows if stop is None else min(stop, self.rows)
        if start >= stop:
            return TABLES[self._path.stem].empty_table()
        first = next(i for i, end in enumerate(self._stops) if end > start)
        last = next(i for i, end in enumerate(self._stops) if end >= stop)
        # Steps are read in order: the next one is often in the same row groups.
        offset = self._stops[first - 1] if first else 0
        cached = self._cached
        if columns is None and cached is not None and (cached.first, cached.last) == (first, last):
            return cached.rows.slice(start - offset, stop - start)
        try:
            groups = self._file.read_row_groups(list(range(first, last + 1)), columns)
            if columns is None:
                groups = _conform(groups, self._path.stem)
        except _UNREADABLE as error:
            raise self._damaged(error) from error
        if columns is None and last - first < _REMEMBERED:
            self._cached = _RowGroups(first, last, groups)
        return groups.slice(start - offset, stop - start)

    def _damaged(self, error: Exception) -> RunError:
        if isinstance(error, PermissionError):
            return RunError(f"{self._path} cannot be read (Permission denied): check its permissions")
        return RunError(f"{self._path} is damaged ({str(error).splitlines()[0][:200]}): {CURE}")


class _Stream:
    """An Arrow stream up to its last complete batch: the rest is not written yet, or was cut off."""

    def __init__(self, path: Path, checked: Checked | None) -> None:
        batches: list[pa.RecordBatch] = []
        schema = None
        _, table, _ = path.name.split(".")
        with path.open("rb") as file:
            size = file.seek(0, 2)
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
        if checked is not None:
            content = content[: checked.size]
            if size < checked.size or zlib.crc32(content) != checked.crc:
                what = f"{checked.size - size} bytes are cut off" if size < checked.size else "its checksum is another"
                raise RunError(f"{path} is damaged ({what}): {CURE}")
        if is_packed(content):
            raise RunError(f"{path} is compressed, which numscope never does: read only runs that you trust")
        try:
            reader = pa.ipc.open_stream(pa.py_buffer(content))
            schema = reader.schema
            for batch in reader:
                batch.validate()
                batches.append(batch)
        except _UNREADABLE:
            pass
        self._table = _conform(pa.Table.from_batches(batches, schema or TABLES[table]), table)
        self.rows = self._table.num_rows

    def read(self, start: int, stop: int | None, columns: list[str] | None) -> pa.Table:
        table = self._table if columns is None else self._table.select(columns)
        return table.slice(start, None if stop is None else stop - start)


def _conform(rows: pa.Table, table: str) -> pa.Table:
    """Return rows in the schema of their table; a column that an older numscope did not write is null."""
    schema = TABLES[table]
    if rows.schema.equals(schema):
        return rows
    missing = [name for name in schema.names if name not in rows.column_names]
    extra = [name for name in rows.column_names if name not in schema.names]
    if missing and extra:
        raise ValueError(f"it has a column {extra[0]!r} and no column {missing[0]!r}")
    for name in set(schema.names) - set(missing):
        if rows.schema.field(name).type != schema.field(name).type:
            raise ValueError(f"its column {name!r} is {rows.schema.field(name).type}, not {schema.field(name).type}")
    columns = [pa.nulls(rows.num_rows, fld.type) if fld.name in missing else rows[fld.name] for fld in schema]
    return pa.table(columns, schema=schema)


def _list_segments(directory: Path) -> set[int]:
    names = [entry.name.partition(".") for entry in directory.iterdir()]
    return {int(number) for number, _, rest in names if number.isdecimal() and (not rest or rest.endswith(".arrows"))}


def _read_lines(path: Path, of: str | None) -> list[StepLine]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        if of and _list_segments(path.parent):
            raise RunError(f"{path} is missing: {CURE}") from None
        return []
    complete = content[: content.rfind(b"\n") + 1]  # a line without its end was cut off
    lines = []
    for number, line in enumerate(complete.splitlines(), 1):
        try:
            document = json.loads(line)
            if of is not None and not is_intact(document, of, needed=True):
                raise ValueError(MEMBER)
            lines.append(_parse_line(document))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise RunError(f"{path} is damaged (line {number}): {CURE}") from error
    return lines


def _parse_line(line: JsonObject) -> StepLine:
    rows = {table: RowRange(*map(int, line["rows"].get(table, (0, 0)))) for table in TABLES}
    step, segment = int(line["step"]), int(line["segment"])
    if min(step, segment, *(end for part in rows.values() for end in part)) < 0:
        raise ValueError(step)
    return StepLine(
        step=step,
        segment=segment,
        rows=rows,
        skipped={str(reason): int(count) for reason, count in line["skipped"].items()},
        faults=int(line.get("faults", 0)),  # 0.1.0 did not count them
        time=float(line["time"]),
        seconds=float(line["seconds"]),
    )
