"""Reads the tables of one rank, whatever state its segments are in: open, being closed, closed, cut off by a kill."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from numscope.core.errors import RunError
from numscope.store.schema import TABLES
from numscope.store.segments import parquet_path, stream_path

_REMEMBERED = 4  # row groups, at most, that are kept in memory for the next read
_CURE = "copy it again from where the run was made, or capture again"


@dataclass(frozen=True)
class StepLine:
    """A line of steps.jsonl: a complete step, and where its rows are."""

    step: int
    segment: int
    rows: dict[str, tuple[int, int]]
    skipped: dict[str, int]
    time: float
    seconds: float


class RankTables:
    """The tables of one rank, read when asked for. Steps are those that were complete when it was opened."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lines = _read_lines(directory / "steps.jsonl")
        self._open: dict[tuple[int, str], _Parquet | _Stream] = {}

    def segments(self) -> list[int]:
        """Return the numbers of the segments, in order."""
        found = {line.segment for line in self.lines}
        for entry in self.directory.iterdir():
            number, _, rest = entry.name.partition(".")
            if number.isdecimal() and (rest == "" or rest.endswith(".arrows")):
                found.add(int(number))
        return sorted(found)

    def step(self, step: int, table: str) -> pa.Table:
        """Return the rows of a step; those that were written so far where it is not complete."""
        parts = [self.read(line.segment, table, *line.rows[table]) for line in self.lines if line.step == step]
        if not parts:
            tail = self.tail(table)
            parts = [tail.filter(pa.compute.equal(tail["step"], step))]
        return parts[0] if len(parts) == 1 else pa.concat_tables(parts)

    def tail(self, table: str) -> pa.Table:
        """Return the rows of the last segment that belong to no complete step."""
        segments = self.segments()
        if not segments:
            return TABLES[table].empty_table()
        stops = [line.rows[table][1] for line in self.lines if line.segment == segments[-1]]
        return self.read(segments[-1], table, max(stops, default=0), None)

    def segment(self, segment: int, table: str, columns: list[str] | None = None) -> pa.Table:
        """Return all rows of a segment, of those columns only where they are given."""
        stops = [line.rows[table][1] for line in self.lines if line.segment == segment]
        rows = self.read(segment, table, 0, None, columns)
        if rows.num_rows < max(stops, default=0):
            raise self._short(segment, table, rows.num_rows, max(stops))
        return rows

    def read(
        self, segment: int, table: str, start: int, stop: int | None, columns: list[str] | None = None
    ) -> pa.Table:
        """Return a range of rows of a segment's table, to its end where stop is None."""
        source = self._source(segment, table, stop or 0)
        rows = source.read(start, stop, columns) if source else TABLES[table].empty_table()
        if stop is not None and rows.num_rows < stop - start:
            raise self._short(segment, table, start + rows.num_rows, stop)
        return rows

    def _source(self, segment: int, table: str, least: int) -> _Parquet | _Stream | None:
        known = self._open.get((segment, table))
        if known is not None and known.rows >= least:
            return known
        # A segment may be closed by its writer between two looks: then its stream is gone and its Parquet file there.
        for _ in range(2):
            for path, kind in (
                (parquet_path(self.directory, segment, table), _Parquet),
                (stream_path(self.directory, segment, table), _Stream),
            ):
                try:
                    source = kind(path)
                except FileNotFoundError:
                    continue
                self._open[segment, table] = source
                return source
        return None

    def _short(self, segment: int, table: str, found: int, wanted: int) -> RunError:
        path = parquet_path(self.directory, segment, table)
        if not path.parent.exists():
            path = stream_path(self.directory, segment, table)
        what = "is damaged" if path.exists() else "is missing"
        return RunError(f"{path} {what} ({found} of {wanted} rows are there): {_CURE}")


class _Parquet:
    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise FileNotFoundError(path)
        self._path = path
        self._last: tuple[tuple[int, int], pa.Table] | None = None
        try:
            self._file = pq.ParquetFile(path, memory_map=True, page_checksum_verification=True)
        except (pa.ArrowInvalid, OSError) as error:
            raise self._damaged(error) from error
        counts = [self._file.metadata.row_group(i).num_rows for i in range(self._file.metadata.num_row_groups)]
        self._stops: list[int] = []
        for count in counts:
            self._stops.append(count + (self._stops[-1] if self._stops else 0))
        self.rows = self._stops[-1] if self._stops else 0

    def read(self, start: int, stop: int | None, columns: list[str] | None) -> pa.Table:
        stop = self.rows if stop is None else min(stop, self.rows)
        if start >= stop:
            return self._file.schema_arrow.empty_table()
        first = next(i for i, end in enumerate(self._stops) if end > start)
        last = next(i for i, end in enumerate(self._stops) if end >= stop)
        # Steps are read one after the other: the next one is often in the same row groups.
        offset = self._stops[first - 1] if first else 0
        if columns is None and self._last is not None and self._last[0] == (first, last):
            return self._last[1].slice(start - offset, stop - start)
        try:
            groups = self._file.read_row_groups(list(range(first, last + 1)), columns)
        except (pa.ArrowInvalid, OSError) as error:
            raise self._damaged(error) from error
        if columns is None and last - first < _REMEMBERED:
            self._last = ((first, last), groups)
        return groups.slice(start - offset, stop - start)

    def _damaged(self, error: Exception) -> RunError:
        return RunError(f"{self._path} is damaged ({str(error).splitlines()[0]}): {_CURE}")


class _Stream:
    """An Arrow stream up to its last complete batch: what comes after is not written yet, or was cut off."""

    def __init__(self, path: Path) -> None:
        batches: list[pa.RecordBatch] = []
        schema = None
        with pa.memory_map(str(path)) as source:
            try:
                reader = pa.ipc.open_stream(source)
                schema = reader.schema
                for batch in reader:
                    batch.validate()
                    batches.append(batch)
            except (pa.ArrowInvalid, OSError):
                pass
        schema = schema or TABLES[path.name.split(".")[1]]
        self._table = pa.Table.from_batches(batches, schema)
        self.rows = self._table.num_rows

    def read(self, start: int, stop: int | None, columns: list[str] | None) -> pa.Table:
        table = self._table if columns is None else self._table.select(columns)
        return table.slice(start, None if stop is None else stop - start)


def _read_lines(path: Path) -> list[StepLine]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    complete = content[: content.rfind(b"\n") + 1]  # a line without its end was cut off
    lines = []
    for number, line in enumerate(complete.splitlines(), 1):
        try:
            lines.append(_parse_line(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is damaged (line {number}): {_CURE}") from error
    return lines


def _parse_line(line: dict[str, Any]) -> StepLine:
    return StepLine(
        step=int(line["step"]),
        segment=int(line["segment"]),
        rows={table: (int(line["rows"][table][0]), int(line["rows"][table][1])) for table in TABLES},
        skipped={str(reason): int(count) for reason, count in line["skipped"].items()},
        time=float(line["time"]),
        seconds=float(line["seconds"]),
    )
