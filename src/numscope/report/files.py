"""Checks that output files can be written: a clear error before the work, not a traceback after it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from numscope.core.errors import SettingsError, writing


def check_output(path: str | os.PathLike[str]) -> Path:
    """Return the path of an output file after making sure that it can be written."""
    target = Path(path)
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
