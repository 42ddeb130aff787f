"""Limits how long what was recorded may lie in memory: a killed job leaves all calls but those of its last second.

A thread of ours looks at the recorder four times a second. What has lain there for two looks is due: the job's own thread
hands it over at the end of its next call, for which it has to look at nothing new (`Recorder.full` is as good as zero).
Where no call ends before the next look, because the job waits (for a peer, for data, for a long operation), the thread
hands it over itself: nothing of the job moves in the recorder meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from numscope.capture.recording.recorder import Progress, Recorder

LOOK = 0.25  # seconds; three looks and the writing stay below a second


class UnwrittenLimit:
    """The thread, between `start` and `stop`."""

    def __init__(self, recorder: Recorder, may_open: Callable[[], bool]) -> None:
        self.error: Exception | None = None  # that a hand-over of the thread has raised
        self._recorder = recorder
        self._may_open = may_open  # whether the run may be opened, where it is not
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        if self._thread is not None:
            return
        self._ended.clear()
        thread = threading.Thread(target=self._look, name="numscope-unwritten", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # an interpreter that is ending starts no threads, or there are too many
            return
        self._thread = thread

    def stop(self, wait: bool = True) -> None:
        """End the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.set()
            if wait:
                thread.join()

    def take_error(self) -> Exception | None:
        """Return the error that ended the thread, once."""
        error, self.error = self.error, None
        return error

    def _look(self) -> None:
        recorder = self._recorder
        before: Progress | None = None
        looks = 0
        while not self._ended.wait(LOOK):
            now = recorder.progress()
            looks = looks + 1 if before is not None and now.batch == before.batch and now.rows else 0
            moved, before = now != before, now
            if looks == 0 or not (recorder.opened or self._may_open()):
                continue
            if looks == 1 or moved or not recorder.is_on_host:
                recorder.due()
                continue
            try:
                recorder.flush_unmoved(now)
            except Exception as error:
                self.error = error
                return
