"""Large contents on the CPU: each measured at once, some chunks at a time, and only once.

A view of another shape, a copy, a gradient that is handed on: a third of a step's bytes were measured before, under another
storage or layout. So the hash comes first, for it is a third of the work: a content of the same kind, length and hash is
the same content, and gets the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from numscope.fingerprint.chunks import Measure, Scratch
from numscope.fingerprint.kinds import Kind
from numscope.fingerprint.rows import Rows

Chunks = Callable[[], Iterator[NDArray[np.uint8]]]  # the content's bytes, four chunks at a time; may be asked for twice


class Large:
    """What is known of the large contents of one batch."""

    def __init__(self, scratch: Scratch, rows: Rows) -> None:
        self._scratch = scratch
        self.begin(rows)

    def begin(self, rows: Rows) -> None:
        """Begin anew, with results going to these rows."""
        self._rows = rows
        self._known: dict[
            tuple[str, int, int], tuple[int, int]
        ] = {}  # kind, length, hash of the first chunks → hash, row

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
            known = self._known.get(key)
            if known is None:
                result.add_values(first)
                for raw in rest:
                    result.take(raw)
            else:
                for raw in rest:
                    result.add_hash(raw)
                if result.hash_so_far() == known[0]:
                    self._rows.repeat(row, known[1], elements)
                    return
                for raw in chunks():
                    result.add_values(raw)
            result.finish()
        self._known[key] = result.hash, row
        self._rows.set(row, elements, result)
