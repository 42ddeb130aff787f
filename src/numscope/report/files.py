"""Checks that output files can be written: a clear error before the work, not a traceback after it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from numscope.core.errors import SettingsError, writing

STDOUT = "-"  # in place of a file: standard output, where nothing else is printed then


def answer_stream(json_path: str | None) -> TextIO:
    """Return where an answer is printed: standard output, or nowhere where that takes the JSON."""
    return io.StringIO() if json_path == STDOUT else sys.stdout


def check_output(path: str | os.PathLike[str]) -> Path:
    """Return the path of an output file after making sure that it can be written."""
    target = Path(path)
    if path == STDOUT:
        return target
    if target.is_dir():
        raise SettingsError(f"{target} is a directory: name a file")
    parent = target.parent
    if not parent.exists():
        raise SettingsError(
            f"{target} cannot be written: there is no directory {parent}: make it, or name another file"
        )
    writable = target if target.exists() else parent
    if not os.access(writable, os.W_OK):
        raise SettingsError(f"{target} cannot be written: no permission: check it, or name another file")
    return target


@contextmanager
def output(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of an output file to write; an error of the system then names the file."""
    target = check_output(path)
    with writing(target):
        yield target
