"""Warnings of torch while a job is watched: they name the user's line, as they do without numscope.

Torch warns at the frame that called it, or some frames above. While a mode is on, that frame is one of ours; the warning is
then shown with the innermost line of the user's code instead. Frames are looked at only when there is a warning.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from numscope.capture.sites import is_user

_OWN = str(Path(__file__).parents[1])  # no other part of numscope stands between a user and torch


def name_users_lines() -> Callable[[], None]:
    """Show warnings about our lines with the user's line; return a function that undoes this."""
    before = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if filename.startswith(_OWN) and (users := _users_line()) is not None:
            filename, lineno = users
        before(message, category, filename, lineno, file, line)

    def undo() -> None:
        if warnings.showwarning is show:
            warnings.showwarning = before

    warnings.showwarning = show
    return undo


def _users_line() -> tuple[str, int] | None:
    frame = sys._getframe(2)
    while frame is not None:
        if is_user(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None
