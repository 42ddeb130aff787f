"""Growing columns to which the forms write their results, row by row or many rows at once."""

from __future__ import annotations

from ctypes import addressof, c_int64

import numpy as np
from numpy.typing import NDArray

from numscope.fingerprint.chunks import Measure
from numscope.fingerprint.columns import Fingerprints
from numscope.fingerprint.constants import SKETCH

_INTEGERS = ("elements", "nan", "posinf", "neginf", "zero")
_FLOATS = ("min", "max", "mean", "l2")


class Places:
    """The addresses of the columns of the current rows, for native.c: one object for all rows of a batch in turn."""

    def __init__(self) -> None:
        self.columns = (c_int64 * 4)()
        self.address = addressof(self.columns)


class Rows:
    """The results of one batch, written in any order; a row that was never written is that of an empty tensor."""

    __slots__ = ("_least", "_places", "count", "floats", "hash", "integers", "room", "sketch")

    def __init__(self, capacity: int = 256, places: Places | None = None) -> None:
        self.count = 0
        self._least = capacity
        self._places = places
        self._allocate(0)  # memory is taken when there is something to write

    def succeed(self) -> Rows:
        """Return the rows of the next batch; native.c writes to those from here on."""
        places, self._places = self._places, None
        return Rows(max(256, self.count), places)

    def _allocate(self, capacity: int) -> None:
        self.integers = np.zeros((capacity, len(_INTEGERS)), np.int64)
        self.floats = np.empty((capacity, len(_FLOATS)), np.float64)
        self.floats[:] = (np.nan, np.nan, np.nan, 0.0)
        self.hash = np.zeros(capacity, np.uint64)
        self.sketch = np.zeros((capacity, SKETCH), np.float64)
        self.room = capacity
        if self._places is not None:
            columns = self.integers, self.floats, self.hash, self.sketch
            self._places.columns[:] = [column.ctypes.data for column in columns]

    def reserve(self) -> None:
        """Make room for all rows counted so far."""
        if self.count <= self.room:
            return
        old = self.integers, self.floats, self.hash, self.sketch
        self._allocate(max(self.count, 2 * self.room, self._least))
        for before, now in zip(old, (self.integers, self.floats, self.hash, self.sketch)):
            now[: len(before)] = before

    def set(self, row: int, elements: int, result: Measure) -> None:
        """Write the result of one measure; `elements` is the tensor's own number of them."""
        self.reserve()
        self.integers[row] = (elements, result.nan, result.posinf, result.neginf, result.zero)
        mean = result.mean()
        none = mean != mean
        self.floats[row] = (np.nan if none else result.min, np.nan if none else result.max, mean, result.l2)
        self.hash[row] = result.hash
        self.sketch[row] = result.sketch

    def recount(self, row: int, zero: int, nan: int) -> None:
        """Put the counts of complex elements in the place of those of their parts."""
        self.reserve()
        self.integers[row, _INTEGERS.index("zero")] = zero
        self.integers[row, _INTEGERS.index("nan")] = nan

    def repeat(self, row: int, source: int, elements: int) -> None:
        """Copy another row, for a tensor with this number of elements."""
        self.reserve()
        for column in (self.integers, self.floats, self.hash, self.sketch):
            column[row] = column[source]
        self.integers[row, 0] = elements

    def set_many(self, rows: NDArray[np.int64], columns: Fingerprints) -> None:
        """Write many rows at once."""
        self.reserve()
        for at, name in enumerate(_INTEGERS):
            self.integers[rows, at] = getattr(columns, name)
        for at, name in enumerate(_FLOATS):
            self.floats[rows, at] = getattr(columns, name)
        self.hash[rows] = columns.hash
        self.sketch[rows] = columns.sketch

    def set_block(
        self,
        rows: NDArray[np.int64],
        integers: NDArray[np.int64],
        floats: NDArray[np.float64],
        hashes: NDArray[np.uint64],
        sketch: NDArray[np.float64],
    ) -> None:
        """Write many rows at once, from blocks in the layout of these rows."""
        self.reserve()
        self.integers[rows] = integers
        self.floats[rows] = floats
        self.hash[rows] = hashes
        self.sketch[rows] = sketch

    def hand_over(self) -> Fingerprints:
        """Return all rows, and begin again without any."""
        self.reserve()
        count = self.count
        integers, floats = (np.ascontiguousarray(block[:count].T) for block in (self.integers, self.floats))
        elements, nan, posinf, neginf, zero = integers
        low, high, mean, l2 = floats
        hashes, sketch = self.hash[:count], self.sketch[:count]
        result = Fingerprints(elements, nan, posinf, neginf, zero, low, high, mean, l2, hashes, sketch)
        self.count = 0
        self._least = max(256, count)
        self._allocate(0)
        return result
