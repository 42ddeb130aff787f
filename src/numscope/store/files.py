"""Writes files completely: all buffers of a list, and files that appear with all their content or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_VECTOR = 1000  # buffers the system takes in one call (IOV_MAX is 1024)


def write_all(fd: int, buffers: Sequence[memoryview]) -> None:
    """Append all buffers to a file, with as few system calls as possible."""
    waiting = [buffer for buffer in buffers if len(buffer)]
    first = 0
    while first < len(waiting):
        written = os.writev(fd, waiting[first : first + _VECTOR])
        while first < len(waiting) and written >= len(waiting[first]):
            written -= len(waiting[first])
            first += 1
        if written:
            waiting[first] = waiting[first][written:]


def place(path: Path, content: bytes, replace: bool = False) -> bool:
    """Make a file appear with all its content at once; return False where another process has made it first."""
    waiting = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    waiting.write_bytes(content)
    try:
        if replace:
            os.replace(waiting, path)
            return True
        os.link(waiting, path)
        return True
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if path.exists():
            return False
        os.replace(waiting, path)
        return True
    finally:
        waiting.unlink(missing_ok=True)
