"""The one way to run our own code inside a Paddle job."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class _Thread(Protocol):
    busy: bool


class Watched(Protocol):
    """Owns the state of each thread, and counts the faults of our own code."""

    @property
    def thread(self) -> _Thread:
        """The state of the thread that asks."""

    def fault(self, where: str, error: Exception) -> None:
        """Count a fault of our own, or raise it."""


class OwnCode:
    """Context manager around our own code: none of our replaced functions and hooks records it.

    With `where`, a fault inside is counted under that name and the job goes on; without, it is raised. Stretches may be
    nested.
    """

    __slots__ = ("_nested", "_watch", "_where")

    def __init__(self, watch: Watched, where: str = "") -> None:
        self._watch = watch
        self._where = where

    def __enter__(self) -> None:
        thread = self._watch.thread
        self._nested = thread.busy
        thread.busy = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._watch.thread.busy = self._nested
        if error is None or not self._where or not isinstance(error, Exception):
            return False
        self._watch.fault(self._where, error)
        return True
