"""The fingerprint of numpy arrays, fast: for other frameworks' arrays, imported dumps and saved data."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from numscope.fingerprint.arena import Arena, place_of
from numscope.fingerprint.chunks import Scratch, raw_chunks
from numscope.fingerprint.columns import Fingerprints
from numscope.fingerprint.kinds import Kind, kind_of
from numscope.fingerprint.large import Large
from numscope.fingerprint.native import Native, load
from numscope.fingerprint.rows import Places, Rows


class NumpyBatch:
    """Measures numpy arrays (ml_dtypes too) one after the other; several threads may share it."""

    def __init__(self, native: bool = True) -> None:
        self._lock = threading.Lock()
        self._places = Places()
        self._rows = Rows(places=self._places)
        self._scratch = Scratch()
        self._arena = Arena(self._scratch, self._rows)
        self._large = Large(self._scratch, self._rows)
        self._native = load() if native else None
        self._complex: list[tuple[int, int, int]] = []  # of complex arrays: row, zeros, NaNs

    def add(self, array: NDArray[np.generic]) -> int:
        """Measure the array as it is now; return its row in the next `collect`."""
        kind = kind_of(array.dtype)
        if kind is None:
            raise TypeError(f"no fingerprint is defined for numpy dtype {array.dtype}")
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        plain = array if array.dtype.kind == "c" else array.view(kind.storage)
        rows = self._rows
        with self._lock:
            row = rows.count
            rows.count += 1
            if array.dtype.kind == "c":
                with np.errstate(invalid="ignore"):
                    zero, nan = np.count_nonzero(array == 0), np.count_nonzero(np.isnan(array))
                self._complex.append((row, int(zero), int(nan)))
            count = array.nbytes // kind.size
            if self._native is not None:
                rows.reserve()
                if self._measure(self._native, row, kind, plain):
                    return row
            block = self._arena.block(kind, count)
            if block is None:
                self._large.measure(row, array.size, kind, count, lambda: raw_chunks(plain, kind.size))
            else:
                place = place_of(block, self._arena.take(block, row, count, array.size), count)
                np.copyto(place.view(plain.dtype).reshape(array.shape), plain)
        return row

    def _measure(self, native: Native, row: int, kind: Kind, array: NDArray[np.generic]) -> bool:
        """Measure an array by the compiled function; return False where that cannot."""
        parts = array.itemsize // kind.size
        shape, strides = (
            (array.shape, array.strides) if parts == 1 else ((*array.shape, parts), (*array.strides, kind.size))
        )
        way = native.way(self._places, kind, array.size, shape, strides)
        address = int(array.ctypes.data)
        return way is not None and way.measure(way.form, row, address >> 32, address) == 0

    def collect(self) -> Fingerprints:
        """Return the rows added since the last `collect`."""
        with self._lock:
            self._arena.finish()
            self._large.begin(self._rows)
            for row, zero, nan in self._complex:
                self._rows.recount(row, zero, nan)
            self._complex.clear()
            return self._rows.hand_over()
