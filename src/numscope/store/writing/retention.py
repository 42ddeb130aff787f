"""How much of a long run stays: the last steps, or so many bytes. What goes is whole segments, the oldest first.

A segment then holds few steps, and its kept tensors have shards of their own, which go with it. Its stacks are needed by
later calls: they move to the segment that is open.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from numscope.store.segments import parquet_path

_PARTS = 8  # segments, about, that the files are cut into: one is written, and one is made Parquet, beside the others


@dataclass(frozen=True)
class Limits:
    """The limits of what stays; 0 is none."""

    steps: int = 0
    bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.steps or self.bytes)

    def ends_segment(self, steps: int, size: int) -> bool:
        """Tell whether a segment with so many complete steps and bytes should be closed."""
        by_steps = self.steps and steps >= max(1, self.steps // _PARTS)
        return bool(by_steps or (self.bytes and size >= self.bytes // _PARTS))


NO_LIMITS = Limits()


@dataclass
class Past:
    """A closed segment."""

    segment: int
    lines: list[bytes]  # of steps.jsonl
    shards: list[str]
    bytes: int = 0

    def measure(self, directory: Path) -> None:
        """Count its bytes."""
        tables = parquet_path(directory, self.segment, "calls").parent
        files = [*tables.iterdir(), *(directory / name for name in self.shards)]
        self.bytes = sum(file.stat().st_size for file in files)

    def stacks(self, directory: Path) -> pa.Table | None:
        """Return the stacks that begin in it, or None."""
        path = parquet_path(directory, self.segment, "stacks")
        return pq.read_table(path, page_checksum_verification=True) if path.exists() else None

    def delete(self, directory: Path) -> None:
        """Delete its files."""
        tables = parquet_path(directory, self.segment, "calls").parent
        gone = tables.with_name(f"{tables.name}.tmp")  # readers ignore it
        tables.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        for name in self.shards:
            (directory / name).unlink(missing_ok=True)


@dataclass
class Retained:
    """The closed segments that are still there."""

    limits: Limits
    segments: list[Past] = field(default_factory=list)

    def surplus(self) -> list[Past]:
        """Return the segments that must go, and forget them; the last one stays."""
        gone: list[Past] = []
        while len(self.segments) > 1 and self._is_too_much():
            gone.append(self.segments.pop(0))
        return gone

    def _is_too_much(self) -> bool:
        others = sum(len(past.lines) for past in self.segments[1:])
        size = sum(past.bytes for past in self.segments)
        room = self.limits.bytes - 2 * (self.limits.bytes // _PARTS)
        return bool((self.limits.steps and others >= self.limits.steps) or (self.limits.bytes and size > room))
