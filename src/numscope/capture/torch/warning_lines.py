"""Warnings of torch's own while a job is watched: they name the user's line, as without us.

Torch warns at the frame that called it, or some frames above. While a mode is on, that is one of ours; so what is shown names
the innermost line of the user's that led there instead. Nothing is looked at until there is a warning.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numscope.capture.sites import is_user

_OWN = str(Path(__file__).parents[1])  # capture's files: no other part of numscope stands between a user and torch


def name_users_lines() -> Callable[[], None]:
    """Have warnings that would name one of our lines name the user's; return what undoes it."""
    before = warnings.showwarning

    def show(message: Any, category: Any, filename: str, lineno: int, *rest: Any, **more: Any) -> None:
        if filename.startswith(_OWN) and (place := _users_line()) is not None:
            filename, lineno = place
        before(message, category, filename, lineno, *rest, **more)

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
