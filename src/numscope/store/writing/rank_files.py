"""The files of one rank: its tables, its shards, and the lines that say which steps are complete."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from numscope.core.dtypes import AnyArray
from numscope.store.batch import Batch, Columns, OnDevice, Sample, View, array_of, column, record_batch
from numscope.store.checksums import sealed
from numscope.store.files import write_all
from numscope.store.rundir import STEPS, id_of, write_end
from numscope.store.schema import TENSORS
from numscope.store.segments import SegmentWriter
from numscope.store.shards import key_of_view
from numscope.store.writing.lanes import Job
from numscope.store.writing.messages import Message, Messages, message_of
from numscope.store.writing.retention import NO_LIMITS, Limits, Past, Retained
from numscope.store.writing.shard_writer import Kept, ShardWriter

# Slots refer to tensors and calls, so they are written last: a killed job leaves no slot without its tensor and call.
_ORDER = ("stacks", "tensors", "calls", "slots", "checks")


@dataclass(frozen=True)
class EndOfStep:
    """The end of a step."""

    step: int
    skipped: dict[str, int]  # calls that were not recorded, by reason
    faults: int  # how many of them by a fault of our own
    seconds: float  # its duration
    time: float  # since the epoch


@dataclass(frozen=True)
class PendingBatch:
    """A batch whose data is being written, and whose rows will follow."""

    tables: dict[str, Message]
    jobs: list[Job]

    @property
    def is_done(self) -> bool:
        """Tell whether the data is written."""
        return all(job.is_done for job in self.jobs)


class RankFiles:
    """The files of one rank; used by the writer's thread alone."""

    def __init__(self, directory: Path, segment_bytes: int, shard_bytes: int, limits: Limits = NO_LIMITS) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._id = id_of(directory)
        self._lines = 0  # of complete steps
        self._limits = limits
        self._retained = Retained(limits)
        self._new_lines: list[bytes] = []  # of the open segment, where there are limits
        self._segment = SegmentWriter(directory, 0, self._id)
        self._shards = ShardWriter(directory, shard_bytes)
        self._messages = {name: Messages(name) for name in _ORDER}
        self._begun = 0  # batches that are not finished
        self._end = ""  # as it is written down
        self._begin = dict(self._segment.rows)
        self._lost: dict[str, int] = {}
        self._placed: dict[int, tuple[str, str]] = {}  # shard and key of this step's tensors, by number
        self._steps = _new_file(directory / STEPS)

    def begin(self, batch: Batch) -> PendingBatch:
        """Begin to write the data of a batch; `finish` writes the rows, in the order of the batches."""
        self._check_ours()
        self.write_end("")
        try:
            columns = {name: getattr(batch, name) for name in _ORDER}
            tables: dict[str, Message] = {}
            jobs: list[Job] = []
            for name in _ORDER:
                if name == "tensors" and batch.data:
                    rows, jobs = self._keep(batch, record_batch(name, batch.tensors))
                    tables[name] = message_of(rows)
                elif _has_rows(columns[name]):
                    tables[name] = self._messages[name].of(columns[name], at_once=not self._begun)
        except Exception as error:
            reason = f"not stored: {type(error).__name__}"
            self._lost[reason] = self._lost.get(reason, 0) + len(batch.calls.get("order", ()))
            raise
        self._begun += 1
        return PendingBatch(tables, jobs)

    def finish(self, begun: PendingBatch) -> None:
        """Wait for the data of a batch, and write its rows."""
        for job in begun.jobs:
            job.wait()
        self._check_ours()
        for name, message in begun.tables.items():
            self._segment.append(name, message)
        self._segment.commit()
        self._begun -= 1

    def _keep(self, batch: Batch, tensors: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Job]]:
        """Begin to store the data of a batch; return its tensors with shard and key filled in."""
        numbers = tensors.column("tensor").to_numpy(zero_copy_only=False)
        rows = {int(number): row for row, number in enumerate(numbers)}
        if unknown := batch.data.keys() - rows.keys():
            raise ValueError(f"data for tensor {min(unknown)}, which is not in the batch")
        own = {number: value for number, value in batch.data.items() if not isinstance(value, View)}
        stored, jobs = self._shards.start(_kept(own, rows, tensors))
        self._placed.update(zip(own, stored, strict=True))
        for number, value in batch.data.items():
            if (
                isinstance(value, View) and value.tensor in self._placed
            ):  # else its batch was lost, and that error raised
                shard, key = self._placed[value.tensor]
                self._placed[number] = shard, key_of_view(key, value.offset, value.strides)
        places = {
            rows[number]: (*self._placed[number], isinstance(value, Sample))
            for number, value in batch.data.items()
            if number in self._placed
        }
        return _with_places(tensors, places), jobs

    def end_step(self, end: EndOfStep) -> None:
        self._placed.clear()
        skipped = dict(end.skipped)
        faults = end.faults + sum(self._lost.values())
        for reason, count in self._lost.items():
            skipped[reason] = skipped.get(reason, 0) + count
        self._lost = {}
        rows = {
            table: [self._begin[table], stop] for table, stop in self._segment.rows.items() if stop or table != "checks"
        }
        line = {
            "step": end.step,
            "segment": self._segment.segment,
            "rows": rows,
            "skipped": skipped,
            "faults": faults,
            "time": round(end.time, 3),
            "seconds": round(end.seconds, 6),
        }
        text = json.dumps(sealed(line, self._id), ensure_ascii=False).encode() + b"\n"
        write_all(self._steps, [memoryview(text)])
        self._lines += 1
        self._begin = dict(self._segment.rows)
        if self._limits:
            self._new_lines.append(text)
        size = self._segment.bytes + self._shards.bytes
        if self._segment.bytes >= self._segment_bytes or self._limits.ends_segment(len(self._new_lines), size):
            self.next_segment()

    def next_segment(self) -> None:
        """Close the segment and begin another, unless a step is under way: its rows must be in one segment."""
        if self._segment.bytes and self._segment.rows == self._begin:
            self._check_ours()
            self._segment.close()
            self._segment = SegmentWriter(self._directory, self._segment.segment + 1, self._id)
            self._begin = dict(self._segment.rows)
            if self._limits:
                self._drop_surplus()

    def _drop_surplus(self) -> None:
        """Delete the oldest steps, where there are more than may stay."""
        past = Past(self._segment.segment - 1, self._new_lines, self._shards.next_segment())
        self._new_lines = []
        past.measure(self._directory)
        self._retained.segments.append(past)
        surplus = self._retained.surplus()
        if not surplus:
            return
        for past in surplus:
            stacks = past.stacks(self._directory)
            for batch in stacks.to_batches() if stacks is not None else ():
                self._segment.append("stacks", message_of(batch))
        self._segment.commit()
        self._begin = dict(self._segment.rows)
        self._check_ours()
        lines = [line for past in self._retained.segments for line in past.lines]
        path = self._directory / f".{STEPS}.tmp"
        path.unlink(missing_ok=True)
        steps = _new_file(path)
        write_all(steps, [memoryview(b"".join(lines))])
        path.rename(self._directory / STEPS)
        os.close(self._steps)
        self._steps, self._lines = steps, len(lines)
        for past in surplus:
            past.delete(self._directory)

    def rest(self) -> None:
        """End the threads until more is to be written."""
        self._shards.rest()

    def write_end(self, end: str) -> None:
        """Write down how the rank ended, or that it goes on after all; of a run that was removed nothing."""
        if end != self._end and self._is_ours():
            write_end(self._directory, end, self._lines)
            self._end = end

    def close(self, end: str) -> None:
        try:
            if self._segment.bytes and (not self._end or self._is_ours()):  # a run that has ended may be deleted
                self._check_ours()
                self._segment.close()
            self.write_end(end)
        finally:
            self._segment.let_go()
            self._shards.close()
            os.close(self._steps)

    def _check_ours(self) -> None:
        """Raise if the run was removed or overwritten: files of these names may be another job's."""
        if not self._is_ours():
            raise OSError(errno.ESTALE, "it was removed, or overwritten by another job")

    def _is_ours(self) -> bool:
        return os.fstat(self._steps).st_nlink > 0


def _new_file(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)


def _has_rows(columns: Columns) -> bool:
    return any(values is not None and len(values) for values in columns.values())


def _kept(
    data: Mapping[int, AnyArray | OnDevice | Sample | View], rows: Mapping[int, int], tensors: pa.RecordBatch
) -> list[Kept]:
    """Return the arrays to store; `rows` has the row of each tensor's number in the table."""
    hashes, dtypes = tensors.column("hash").to_pylist(), tensors.column("dtype").to_pylist()
    kept = []
    for number, value in data.items():
        row = rows[number]
        array = array_of(value)
        if not isinstance(array, OnDevice):
            array = np.asarray(array)
        sampled = isinstance(value, Sample)
        shape = tensors.column("shape")[row].as_py() if sampled else None
        kept.append(
            Kept(
                hash=hashes[row],
                dtype=array.dtype.name if dtypes[row] is None else dtypes[row],
                shape=array.shape if shape is None else tuple(shape),
                sampled=sampled,
                array=array,
            )
        )
    return kept


def _with_places(tensors: pa.RecordBatch, places: Mapping[int, tuple[str, str, bool]]) -> pa.RecordBatch:
    """Return the tensors with shard, key and sampled filled in, by row."""
    columns = dict(zip(tensors.schema.names, tensors.columns, strict=True))
    for part, name in enumerate(("shard", "key", "sampled")):
        values = [places[row][part] if row in places else None for row in range(tensors.num_rows)]
        columns[name] = column(values, TENSORS.field(name).type, tensors.num_rows)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=TENSORS)
