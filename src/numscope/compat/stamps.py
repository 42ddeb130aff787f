"""Names with a time in them, as the older systems make them, that never name what is there already."""

from __future__ import annotations

import time
from pathlib import Path


def unused(folder: Path, name: str, form: str) -> Path:
    """Return `folder / name` with the time in place of {}; a later second where this one has such a file already."""
    now = time.time()
    while (path := folder / name.format(time.strftime(form, time.localtime(now)))).exists():
        now += 1
    return path
