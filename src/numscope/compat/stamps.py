"""File names with a time stamp, in the older systems' form, that never name a file that exists."""

from __future__ import annotations

import time
from pathlib import Path


def unused(folder: Path, name: str, form: str) -> Path:
    """Return `folder / name` with the time in place of {}, moved on by seconds until no such file exists."""
    now = time.time()
    while (path := folder / name.format(time.strftime(form, time.localtime(now)))).exists():
        now += 1
    return path
