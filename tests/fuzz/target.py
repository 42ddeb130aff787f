"""A target: a good file, and the function that reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """Reads bytes; `folder` is empty and its own."""

    name: str
    good: Callable[[Path], list[bytes]]
    read: Callable[[bytes, Path], object]


def written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def texts(*contents: str) -> Callable[[Path], list[bytes]]:
    return lambda folder: [content.encode() for content in contents]
