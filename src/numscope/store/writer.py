"""Writes a run: the job's thread hands batches over, and a writer's thread turns them into files.

    with RunWriter("runs/gpu", rank=0, manifest=collect(framework="torch")) as writer:
        writer.write(Batch(calls={...}, slots={...}, tensors={...}, data={0: array}))
        writer.end_step(0, skipped={})

A fault in the thread surfaces as a RunError at the next call of the writer. Whatever was written before stays readable.
"""

from __future__ import annotations

import atexit
import errno
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from numscope.core.errors import RunError
from numscope.core.json_value import JsonObject
from numscope.store import rundir
from numscope.store.batch import Batch, OnDevice, Sample, View
from numscope.store.segments import SEGMENT_BYTES
from numscope.store.writing.rank_files import EndOfStep, PendingBatch, RankFiles
from numscope.store.writing.retention import NO_LIMITS, Limits
from numscope.store.writing.shard_writer import SHARD_BYTES

__all__ = ["Batch", "Limits", "OnDevice", "RunWriter", "Sample", "View"]

QUEUE_BYTES = 256 << 20
_AHEAD = 16  # batches at most whose data is being written while the next are prepared


class _Command(Enum):
    """A command to the writer's thread."""

    SETTLE = 1  # say how the rank ended, and rest
    CLOSE = 2
    NOTHING = 3  # the queue is empty


_Item = Batch | Callable[[], Batch] | EndOfStep | _Command
_T = TypeVar("_T")


class RunWriter:
    """The writer of one rank of a run.

    `write` waits while more than `queue_bytes` are waiting to be written, so memory is bounded; `limits` say how much of a
    long run stays. Rows written since the last `end_step` belong to the step that the next one ends; a step is visible to
    readers once it has ended. `yields`: another process of the job may take the rank over, until a step has ended.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rank: int,
        manifest: JsonObject,
        overwrite: bool = False,
        yields: bool = False,
        queue_bytes: int = QUEUE_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        shard_bytes: int = SHARD_BYTES,
        limits: Limits = NO_LIMITS,
    ) -> None:
        self.path = Path(path)
        self.rank = rank
        directory = rundir.create(self.path, rank, manifest, overwrite, yields)
        self._files = RankFiles(
            directory.absolute(), segment_bytes, shard_bytes, limits
        )  # the job may change its working directory
        self._queue: deque[tuple[_Item, int]] = deque()  # each with its size
        self._changed = threading.Condition()
        self._limit = queue_bytes
        self._waiting = 0  # bytes in the queue, the batch being written included
        self._items = 0  # likewise, items
        self._error: BaseException | None = None
        self._broken: BaseException | None = None
        self._closed = False
        self._end = ""  # how the rank ended, for the next settle or close
        self._pid = os.getpid()
        self._step_began = time.perf_counter()
        self._thread: threading.Thread | None = None  # none while nothing is to be written, after `settle`
        atexit.register(self._close_at_exit)

    def write(self, batch: Batch | Callable[[], Batch], size: int | None = None) -> None:
        """Hand over a batch, or a function that makes one in the writer's thread and its size; wait while the queue is full."""
        if size is None:
            size = batch.nbytes() if isinstance(batch, Batch) else 0
        with self._changed:
            self._check()
            while self._thread and self._waiting and self._waiting + size > self._limit and self._broken is None:
                self._changed.wait()
            self._put(batch, size)

    def end_step(self, step: int, skipped: dict[str, int], faults: int = 0) -> None:
        """End a step: it becomes visible when everything handed over before is written.

        `skipped` counts the calls that were not recorded by reason, `faults` those of them that are faults of our own.
        """
        now = time.perf_counter()
        with self._changed:
            self._check()
            self._put(EndOfStep(step, dict(skipped), faults, now - self._step_began, time.time()), 0)
        self._step_began = now

    def flush(self) -> None:
        """Wait until everything handed over is written."""
        with self._changed:
            while self._items and (thread := self._thread) is not None and thread.is_alive():
                self._changed.wait(1.0)
            self._check()

    def settle(self, end: str = rundir.CLOSED) -> None:
        """Wait until everything handed over is written, and how it ended; more may follow, into the same segment."""
        with self._changed:
            self._check()
            self._end = end
            self._put(_Command.SETTLE, 0)
            thread = self._thread
        self.flush()
        if thread is not None and self._thread is None:
            thread.join()

    def close(self, end: str = rundir.CLOSED) -> None:
        """Write the rest of the queue and how the rank ended, close the files, and end the thread."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._end = end
        atexit.unregister(self._close_at_exit)
        with self._changed:
            self._queue.append((_Command.CLOSE, 0))
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        else:
            self._work()
        self._raise()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close(rundir.CLOSED if kind is None else kind.__name__)
        except RunError:
            if error is None:  # the user's own error takes precedence
                raise

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except RunError as error:
            print(f"numscope: {error}", file=sys.stderr)

    def _put(self, item: _Item, size: int) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=f"numscope-writer-{self.rank}", daemon=True)
            # An interpreter that is ending starts no threads: close() writes all.
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread
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
            cure = (
                "make room, or choose another directory" if error.errno != errno.ESTALE else "choose another directory"
            )
            raise RunError(f"{self.path} could not be written ({reason}): {cure}") from error
        raise RunError(f"{self.path}: a batch could not be written ({error})") from error

    def _work(self) -> None:
        begun: deque[tuple[PendingBatch, int]] = deque()  # batches whose data is being written, each with its size
        while True:
            item, size = self._next(wait=not begun)
            if not isinstance(item, (EndOfStep, _Command)):
                batch = self._attempt(partial(self._begin, item))
                del item  # frees the data that need not be written
                if batch is None:
                    self._release(size)
                else:
                    begun.append((batch, size))
                self._finish(begun, leave=_AHEAD)
                continue
            self._finish(begun, leave=len(begun) - 1 if item is _Command.NOTHING else 0)
            if item is _Command.CLOSE:
                failed = self._broken or self._error
                self._attempt(partial(self._files.close, type(failed).__name__ if failed else self._end), always=True)
                return
            if isinstance(item, EndOfStep):
                self._attempt(partial(self._files.end_step, item))
            if item is _Command.SETTLE:
                self._attempt(self._settle)
                self._files.rest()
                with self._changed:
                    rests = not self._queue
                    self._thread = None if rests else self._thread
                    self._release(0)
                if rests:
                    return
            elif item is not _Command.NOTHING:
                self._release(0)

    def _next(self, wait: bool) -> tuple[_Item, int]:
        with self._changed:
            while wait and not self._queue:
                self._changed.wait()
            return self._queue.popleft() if self._queue else (_Command.NOTHING, 0)

    def _begin(self, item: Batch | Callable[[], Batch]) -> PendingBatch:
        return self._files.begin(item if isinstance(item, Batch) else item())

    def _settle(self) -> None:
        if self._error is None:
            self._files.write_end(self._end)

    def _finish(self, begun: deque[tuple[PendingBatch, int]], leave: int) -> None:
        """Finish in order the batches whose data is written, waiting for it while more than `leave` are unfinished."""
        while begun and (len(begun) > leave or begun[0][0].is_done):
            batch, size = begun.popleft()
            self._attempt(partial(self._files.finish, batch), fatal=True)
            self._release(size)

    def _release(self, size: int) -> None:
        with self._changed:
            self._waiting -= size
            self._items -= 1
            self._changed.notify_all()

    def _attempt(self, work: Callable[[], _T], *, fatal: bool = False, always: bool = False) -> _T | None:
        """Do work of the thread, unless it failed fatally or at the system before: a full disk stays full."""
        if self._broken is not None and not always:
            return None
        try:
            return work()
        except BaseException as error:
            if fatal or isinstance(error, OSError):
                self._broken = error
            else:
                self._error = error
            return None
