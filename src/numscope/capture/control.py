"""A switch for a job that is already running: touching a file records the next step.

cap = ns.capture("runs/live", model, control="look")        # records nothing yet
$ touch look                                                # … the next step is recorded
$ echo 5 > look                                             # … or the next five
"""

from __future__ import annotations

import os

from numscope.core.untrusted import is_own


class ControlFile:
    """Decides for each step whether it is recorded, by one `stat` of the file.

    Only a plain file that this user or the administrator has written is obeyed: anybody may write into a shared folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._left = 0
        self._seen = self._stamp()

    def asks(self) -> bool:
        """Tell whether the step that begins now is to be recorded."""
        stamp = self._stamp()
        if stamp is not None and stamp != self._seen:
            self._left = self._count()
        self._seen = stamp
        if self._left == 0:
            return False
        self._left -= 1
        return True

    def _stamp(self) -> int | None:
        try:
            return os.stat(self._path).st_mtime_ns if is_own(self._path) else None
        except OSError:
            return None

    def _count(self) -> int:
        try:
            with open(self._path, encoding="utf-8") as file:
                text = file.read(32).strip()
        except (OSError, UnicodeDecodeError):
            return 1
        return int(text) if text.isascii() and text.isdecimal() else 1
