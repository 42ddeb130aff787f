"""Clocks and folders: step times, and the bytes and files that a tool wrote."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def many(work: Callable[[], object], count: int) -> list[float]:
    return [seconds(work) for _ in range(count)]


def written(directory: Path) -> dict[str, int]:
    """Return the number of files below the directory, and their bytes."""
    sizes = [os.path.getsize(Path(folder) / name) for folder, _, names in os.walk(directory) for name in names]
    return {"files": len(sizes), "bytes": sum(sizes)}
