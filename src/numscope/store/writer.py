"""Writes a run: batches come in from the job's thread, a thread of its own turns them into files.

    with RunWriter("runs/gpu", rank=0, manifest=collect(framework="torch")) as writer:
        writer.write(Batch(calls={...}, slots={...}, tensors={...}, data={0: array}))
        writer.end_step(0, skipped={})

A fault in the thread surfaces as a RunError at the next call of the writer. Whatever was written before stays readable.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from numscope.core.errors import RunError
from numscope.store import rundir
from numscope.store.batch import Batch, Sample, View, array_of, column, record_batch
from numscope.store.files import write_all
from numscope.store.schema import TENSORS
from numscope.store.segments import SEGMENT_BYTES, SegmentWriter
from numscope.store.shards import SHARD_BYTES, Kept, ShardWriter, key_of_view

__all__ = ["Batch", "RunWriter", "Sample", "View"]

QUEUE_BYTES = 256 << 20


class _EndOfStep:
    def __init__(self, step: int, skipped: dict[str, int], seconds: float) -> None:
        self.step, self.skipped, self.seconds, self.time = step, dict(skipped), seconds, time.time()


class _Settle:
    """Close the open segment, and go on with a new one when more comes."""


_Item = Batch | Callable[[], Batch] | _EndOfStep | _Settle


class RunWriter:
    """The writer of one rank of a run.

    `write` waits while more than `queue_bytes` are waiting to be written, so memory is bounded. Rows written since the
    last `end_step` belong to the step that the next one ends; a step is visible to readers once it has ended.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rank: int,
        manifest: dict[str, Any],
        overwrite: bool = False,
        queue_bytes: int = QUEUE_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self.path = Path(path)
        self.rank = rank
        directory = rundir.create(self.path, rank, manifest, overwrite)
        self._files = _Files(directory, segment_bytes, shard_bytes)
        self._queue: deque[tuple[_Item | None, int]] = deque()  # with the size of each
        self._changed = threading.Condition()
        self._limit = queue_bytes
        self._waiting = 0  # bytes in the queue, the batch being written included
        self._items = 0  # likewise, items
        self._error: BaseException | None = None
        self._broken: BaseException | None = None
        self._closed = False
        self._pid = os.getpid()
        self._step_began = time.perf_counter()
        self._thread = threading.Thread(target=self._work, name=f"numscope-writer-{rank}", daemon=True)
        self._thread.start()
        atexit.register(self._close_at_exit)

    def write(self, batch: Batch | Callable[[], Batch], size: int | None = None) -> None:
        """Hand a batch over, or what makes one in the writer's thread and its size; waits while the queue is full."""
        if size is None:
            size = batch.nbytes() if isinstance(batch, Batch) else 0
        with self._changed:
            self._check()
            while self._waiting and self._waiting + size > self._limit and self._broken is None:
                self._changed.wait()
            self._put(batch, size)

    def end_step(self, step: int, skipped: dict[str, int]) -> None:
        """End a step: it becomes visible when all that was handed over before is written."""
        now = time.perf_counter()
        with self._changed:
            self._check()
            self._put(_EndOfStep(step, skipped, now - self._step_began), 0)
        self._step_began = now

    def flush(self) -> None:
        """Wait until all that was handed over is written."""
        with self._changed:
            while self._items and self._thread.is_alive():
                self._changed.wait(1.0)
            self._check()

    def settle(self) -> None:
        """Wait until all is written and in its final form; more may follow."""
        with self._changed:
            self._check()
            self._put(_Settle(), 0)
        self.flush()

    def close(self) -> None:
        """Write what is waiting, close the files, and end the thread."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        with self._changed:
            self._queue.append((None, 0))
            self._changed.notify_all()
        self._thread.join()
        self._raise()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except RunError:
            if error is None:  # the user's own error goes first
                raise

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except RunError as error:
            print(f"numscope: {error}", file=sys.stderr)

    def _put(self, item: _Item, size: int) -> None:
        self._queue.append((item, size))
        self._waiting += size
        self._items += 1
        self._changed.notify_all()

    def _check(self) -> None:
        if self._closed:
            raise RunError(f"the run {self.path} is closed: begin another capture")
        if os.getpid() != self._pid:
            raise RunError(f"the run {self.path} belongs to the process that began it: capture in this one apart")
        self._raise()

    def _raise(self) -> None:
        error = self._error or self._broken
        self._error = None
        if error is None:
            return
        if isinstance(error, OSError):
            reason = error.strerror or error
            raise RunError(f"{self.path} could not be written ({reason}): free space or choose another") from error
        raise RunError(f"{self.path}: a batch could not be written ({error})") from error

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    self._changed.wait()
                item, size = self._queue.popleft()
            try:
                if item is None:
                    self._files.close()
                elif self._broken is None:
                    if isinstance(item, _EndOfStep):
                        self._files.end_step(item)
                    elif isinstance(item, _Settle):
                        self._files.next_segment()
                    else:
                        self._files.write(item if isinstance(item, Batch) else item())
            except OSError as error:  # a full disk stays full: from here on nothing is written
                self._broken = error
            except BaseException as error:
                self._error = error
            if item is None:
                return
            item = None
            with self._changed:
                self._waiting -= size
                self._items -= 1
                self._changed.notify_all()


class _Files:
    """The files of one rank; used by the writer's thread alone."""

    def __init__(self, directory: Path, segment_bytes: int, shard_bytes: int) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._segment = SegmentWriter(directory, 0)
        self._shards = ShardWriter(directory, shard_bytes)
        self._begin = dict(self._segment.rows)
        self._lost: dict[str, int] = {}
        self._placed: dict[int, tuple[str, str]] = {}  # where the data of this step's tensors is, by their number
        self._steps = os.open(directory / "steps.jsonl", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)

    def write(self, batch: Batch) -> None:
        try:
            stacks = record_batch("stacks", batch.stacks)
            calls = record_batch("calls", batch.calls)
            slots = record_batch("slots", batch.slots)
            tensors = record_batch("tensors", batch.tensors)
            if batch.data:
                tensors = self._keep(batch, tensors)
        except Exception as error:
            reason = f"not stored: {type(error).__name__}"
            self._lost[reason] = self._lost.get(reason, 0) + len(batch.calls.get("order", ()))
            raise
        # What is referred to goes before what refers to it: a killed job leaves no slot without its tensor and call.
        self._segment.append("stacks", stacks)
        self._segment.append("tensors", tensors)
        self._segment.append("calls", calls)
        self._segment.append("slots", slots)

    def _keep(self, batch: Batch, tensors: pa.RecordBatch) -> pa.RecordBatch:
        """Store the data of a batch; return its tensors with the place of their data filled in."""
        numbers = tensors.column("tensor").to_numpy(zero_copy_only=False)
        rows = {int(number): row for row, number in enumerate(numbers)}
        if unknown := batch.data.keys() - rows.keys():
            raise ValueError(f"data for tensor {min(unknown)}, which is not in the batch")
        own = {number: value for number, value in batch.data.items() if not isinstance(value, View)}
        kept = _kept(own, rows, tensors)
        self._placed.update(zip(own, self._shards.add(kept), strict=True))
        for number, value in batch.data.items():
            if isinstance(value, View) and value.tensor in self._placed:  # else its batch was lost, and the error told
                shard, key = self._placed[value.tensor]
                self._placed[number] = shard, key_of_view(key, value.offset, value.strides)
        return _with_places(
            tensors,
            {
                rows[number]: (*self._placed[number], isinstance(value, Sample))
                for number, value in batch.data.items()
                if number in self._placed
            },
        )

    def end_step(self, end: _EndOfStep) -> None:
        self._placed.clear()
        skipped = dict(end.skipped)
        for reason, count in self._lost.items():
            skipped[reason] = skipped.get(reason, 0) + count
        self._lost = {}
        rows = {table: [self._begin[table], stop] for table, stop in self._segment.rows.items()}
        line = {
            "step": end.step,
            "segment": self._segment.segment,
            "rows": rows,
            "skipped": skipped,
            "time": round(end.time, 3),
            "seconds": round(end.seconds, 6),
        }
        write_all(self._steps, [memoryview(json.dumps(line, ensure_ascii=False).encode() + b"\n")])
        self._begin = dict(self._segment.rows)
        if self._segment.bytes >= self._segment_bytes:
            self.next_segment()

    def next_segment(self) -> None:
        """Close the segment and begin another, unless a step is under way: its rows must be in one piece."""
        if self._segment.bytes and self._segment.rows == self._begin:
            self._segment.close()
            self._segment = SegmentWriter(self._directory, self._segment.segment + 1)
            self._begin = dict(self._segment.rows)

    def close(self) -> None:
        try:
            self._segment.close()
        finally:
            self._shards.close()
            os.close(self._steps)


def _kept(
    data: Mapping[int, NDArray[Any] | Sample | View], rows: Mapping[int, int], tensors: pa.RecordBatch
) -> list[Kept]:
    """Return what to store for data by the number of its tensor, whose rows in the table are given."""
    hashes, dtypes, shapes = tensors.column("hash"), tensors.column("dtype"), tensors.column("shape")
    kept = []
    for number, value in data.items():
        row = rows[number]
        array = np.asarray(array_of(value))
        dtype, shape = dtypes[row].as_py(), shapes[row].as_py()
        kept.append(
            Kept(
                hash=hashes[row].as_py(),
                dtype=array.dtype.name if dtype is None else dtype,
                shape=array.shape if shape is None else tuple(shape),
                sampled=isinstance(value, Sample),
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
