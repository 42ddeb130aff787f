"""Large contents on the CPU: measured when they are added, some chunks at a time, each distinct content once.

A third of a step's bytes were measured before under another storage or layout: views of another shape, copies, gradients
that are passed on. So the hash, a third of the work, comes first: a content of the same kind, length and hash is the same
content, and gets the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from numscope.fingerprint.chunks import Measure, Scratch
from numscope.fingerprint.kinds import Kind
from numscope.fingerprint.rows import Rows

Chunks = Callable[[], Iterator[NDArray[np.uint8]]]  # the content's bytes, four chunks at a time; may be asked for twice


class SeenContent(NamedTuple):
    """A content of the batch, and its row."""

    hash: int
    row: int


class Large:
    """The large contents of one batch."""

    def __init__(self, scratch: Scratch, rows: Rows) -> None:
        self._scratch = scratch
        self.begin(rows)

    def begin(self, rows: Rows) -> None:
        """Begin a batch, with these rows for its results."""
        self._rows = rows
        self._seen: dict[tuple[str, int, int], SeenContent] = {}  # by kind, length, and hash of the first chunks

    def measure(self, row: int, elements: int, kind: Kind, count: int, chunks: Chunks) -> None:
        """Measure a content of `count` real elements; `elements` is the tensor's own number of them."""
        result = Measure(kind, count, self._scratch)
        with np.errstate(all="ignore"):
            rest = chunks()
            first = next(rest, None)
            if first is None:
                self._rows.set(row, elements, result)
                return
            result.add_hash(first)
            key = kind.name, count, result.hash_so_far()
            seen = self._seen.get(key)
            if seen is None:
                result.add_values(first)
                for raw in rest:
                    result.take(raw)
            else:
                for raw in rest:
                    result.add_hash(raw)
                if result.hash_so_far() == seen.hash:
                    self._rows.repeat(row, seen.row, elements)
                    return
                for raw in chunks():
                    result.add_values(raw)
            result.finish()
        self._seen[key] = SeenContent(result.hash, row)
        self._rows.set(row, elements, result)
