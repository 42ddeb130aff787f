"""Threads that write files side by side.

One thread copies bytes into the system's memory more slowly than most disks write them. So there are several lanes, each
with a thread and an open file of its own; a lane does its jobs in order.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

LANES = max(1, min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))


class Job:
    """A piece of work of a lane."""

    def __init__(self, work: Callable[[], None], size: int) -> None:
        self.size = size
        self._work: Callable[[], None] | None = work
        self._error: BaseException | None = None
        self._done = threading.Event()

    def run(self, before: BaseException | None) -> BaseException | None:
        """Do the work, unless an earlier job has failed: then fail with its error. Return the error."""
        self._error = before
        if self._work is not None and before is None:
            try:
                self._work()
            except BaseException as error:
                self._error = error
        self._work = None  # frees the data
        self._done.set()
        return self._error

    @property
    def is_done(self) -> bool:
        """Tell whether the job is done or has failed."""
        return self._done.is_set()

    def wait(self) -> None:
        """Wait until the job is done; raise the error that it raised."""
        self._done.wait()
        if self._error is not None:
            raise self._error


class Lane:
    """A thread that does jobs in order; after a failed job, all later ones fail too."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._waiting = 0
        self._name = name
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """The bytes that are not written yet."""
        return self._waiting

    def put(self, work: Callable[[], None], size: int) -> Job:
        """Add a job after all earlier ones."""
        job = Job(work, size)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # an interpreter that is ending starts no threads: do jobs in the caller's
                self._failure = job.run(self._failure)
                return job
            self._thread = thread
        with self._lock:
            self._waiting += size
        self._jobs.put(job)
        return job

    def close(self) -> None:
        """Wait until all jobs are done, and end the thread; a later job starts another."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._failure = job.run(self._failure)
            with self._lock:
                self._waiting -= job.size
            del job
