"""A segment: the tables of several steps, as Arrow streams while it is open and as Parquet when it is closed.

    000000.calls.arrows …   open: every write appends one record batch, handed to the system in one call
    000000.checksums        … and then a line with the checksums of all streams
    000000.tmp/             being closed: readers ignore it
    000000/calls.parquet …  closed: appears by one rename; only then are the streams deleted

Readers use the directory if it exists, and the streams otherwise, so each of these states gives the same rows.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from numscope.store.checksums import StreamChecksums, footer_crc, sealed
from numscope.store.files import write_all
from numscope.store.schema import TABLES

if TYPE_CHECKING:
    from numscope.store.writing.messages import Message

SEGMENT_BYTES = 128 << 20
CHECKSUMS = "checksums.json"  # of a closed segment
_ROW_GROUP = 1 << 15  # rows: small enough to read one step of many, large enough to compress
_END_OF_STREAM = memoryview(b"\xff\xff\xff\xff\x00\x00\x00\x00")


def stream_path(directory: Path, segment: int, table: str) -> Path:
    """Return the path of a table of an open segment."""
    return directory / f"{segment:06d}.{table}.arrows"


def parquet_path(directory: Path, segment: int, table: str) -> Path:
    """Return the path of a table of a closed segment."""
    return directory / f"{segment:06d}" / f"{table}.parquet"


def checksums_path(directory: Path, segment: int) -> Path:
    """Return the path of the checksums of an open segment's streams."""
    return directory / f"{segment:06d}.checksums"


class SegmentWriter:
    """The open segment of one rank; `of` is the rank's id."""

    def __init__(self, directory: Path, segment: int, of: str = "") -> None:
        self.segment = segment
        self._of = of
        self._checksums: StreamChecksums | None = None
        self.rows = dict.fromkeys(TABLES, 0)
        self.bytes = 0
        self._directory = directory
        self._files: dict[str, int] = {}

    def append(self, table: str, message: Message) -> None:
        """Append rows to the table's stream."""
        if not message.rows:
            return
        buffers = [message.content]
        if self._checksums is None:  # before the first stream: where there is a stream, there are checksums
            self._checksums = StreamChecksums(checksums_path(self._directory, self.segment), self._of)
        if table not in self._files:
            path = stream_path(self._directory, self.segment, table)
            self._files[table] = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
            buffers.insert(0, memoryview(TABLES[table].serialize()))
        write_all(self._files[table], buffers)
        for buffer in buffers:
            self._checksums.add(table, buffer)
        self.rows[table] += message.rows
        self.bytes += len(message.content)

    def commit(self) -> None:
        """Say that the rows appended so far are whole; readers take no others."""
        if self._checksums is not None:
            self._checksums.commit()

    def close(self) -> None:
        """Turn the streams into Parquet."""
        tables = list(self._files)
        for fd in self._files.values():
            write_all(fd, [_END_OF_STREAM])
        self.let_go()
        if not tables:
            return
        waiting = self._directory / f"{self.segment:06d}.tmp"
        try:
            waiting.mkdir()
            for table in tables:
                _to_parquet(stream_path(self._directory, self.segment, table), waiting / f"{table}.parquet")
            footers = {table: footer_crc(waiting / f"{table}.parquet") for table in tables}
            (waiting / CHECKSUMS).write_text(json.dumps(sealed(footers, f"{self._of}/{self.segment}")))
            waiting.rename(self._directory / f"{self.segment:06d}")
        except BaseException:
            shutil.rmtree(waiting, ignore_errors=True)  # the streams still hold everything
            raise
        for table in tables:
            stream_path(self._directory, self.segment, table).unlink()
        checksums_path(self._directory, self.segment).unlink()

    def let_go(self) -> None:
        """Close the streams as they are."""
        while self._files:
            _, fd = self._files.popitem()
            os.close(fd)
        if self._checksums is not None:
            self._checksums.close()
            self._checksums = None


def _to_parquet(stream: Path, path: Path) -> None:
    # Not memory-mapped: the pages of a mapped file would count as memory of this process.
    with pa.OSFile(str(stream)) as source, pa.ipc.open_stream(source) as reader:
        waiting = [reader.read_next_batch()]
        rows = waiting[0].num_rows
        plain = _incompressible(waiting[0])
        others = [leaf for leaf in _leaves(reader.schema) if leaf not in plain]
        with pq.ParquetWriter(
            path,
            reader.schema,
            compression=dict.fromkeys(others, "ZSTD") | dict.fromkeys(plain, "NONE"),
            compression_level=dict.fromkeys(others, 1),
            use_dictionary=[fld.name for fld in reader.schema if pa.types.is_string(fld.type)],
            write_statistics=[leaf for leaf in others if not leaf.startswith("sketch")],
            write_page_checksum=True,
        ) as writer:
            for batch in reader:
                if rows >= _ROW_GROUP:
                    writer.write_table(pa.Table.from_batches(waiting), row_group_size=rows)
                    waiting, rows = [], 0
                waiting.append(batch)
                rows += batch.num_rows
            writer.write_table(pa.Table.from_batches(waiting), row_group_size=rows)


def _incompressible(batch: pa.RecordBatch) -> list[str]:
    """Return the leaves that are not worth compressing, judged by a segment's first rows."""
    # A sketch looks like noise: leaving it uncompressed makes closing a third faster and the file a tenth larger. Where
    # nothing is measured, it is NaN throughout, and compressing it saves most of the file.
    if "sketch" not in batch.schema.names or np.isnan(batch.column("sketch").values.to_numpy()).all():
        return []
    return [leaf for leaf in _leaves(batch.schema) if leaf.startswith("sketch")]


def _leaves(schema: pa.Schema) -> list[str]:
    """Return Parquet's names of the columns: those inside lists and structs have paths."""
    leaves = []
    for fld in schema:
        path, kind = fld.name, fld.type
        while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
            path, kind = f"{path}.list.element", kind.value_type
        leaves += [f"{path}.{part.name}" for part in kind] if pa.types.is_struct(kind) else [path]
    return leaves
