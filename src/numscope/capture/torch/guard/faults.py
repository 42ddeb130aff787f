"""A fault of the guard's own never stops a job: it is said once, and what was to be looked at is left out."""

from __future__ import annotations

from typing import Any

from numscope.core.errors import NonFiniteError

PASS = (NonFiniteError, Warning)  # what the guard has to say; a warning is raised where the user made errors of them


class OurWork:
    """A stretch of the guard's own work."""

    __slots__ = ("_watch", "_where")

    def __init__(self, watch: Any, where: str) -> None:
        self._watch = watch
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        if error is None or not isinstance(error, Exception) or isinstance(error, PASS):
            return False
        self._watch.fault(self._where, error)
        return True
