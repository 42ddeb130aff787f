"""Two arrays as floating-point numbers, a chunk at a time, in memory that stays in the cache.

float32 holds every value of the dtypes below it, and is what they are read as; everything else is read as float64 (two
float32 arrays stay as they are). Sums have float64 accumulators. Those of dtypes of up to 16 bits are taken over rows of
2048 in float32 first: there a product has no more digits than float32 holds, and the rows' own rounding is below 1e-6.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Elements: the cost of calling numpy is small beside its work, and a few such arrays fit into a cache.
CHUNK = 96 * 1024
_LINE, _PAGE = 64, 4096  # bytes
_LINES = itertools.cycle(range(5, 64, 9))
_SHORT_ROW, _ROW = 2048, 8192  # a BLAS library goes over to several threads beyond 10,000
_TINY = 1e-30  # a mean square below it may have lost elements that float32 cannot square
_HALF = np.dtype(np.float16)
_HALF_BITS, _HALF_SCALE = np.int32(-0x70000001), np.float32(2.0**112)
_HALF_LARGE = 2.0**30  # no element of a chunk is beyond 2¹⁵ where the sum of squares is below this

_OF_THREAD = threading.local()

Reader = Callable[[NDArray[Any], NDArray[Any]], None]


class Sums(NamedTuple):
    """Sums over a chunk of b and d = a - b."""

    bb: float
    dd: float
    db: float
    b: float
    d: float


class Work:
    """Memory that every chunk of up to CHUNK elements uses again: fresh memory would cost more than the arithmetic."""

    def __init__(self, dtype_a: np.dtype[Any], dtype_b: np.dtype[Any], precise: bool) -> None:
        narrow = _fits_float32(dtype_a) and _fits_float32(dtype_b)
        self.dtype = np.dtype(np.float32 if narrow else np.float64)
        self.short = narrow and dtype_a.itemsize <= 2 and dtype_b.itemsize <= 2 and not precise
        self._doubtful = _HALF in (dtype_a, dtype_b)
        self._a, self._b = (None if dtype == self.dtype else _memory(CHUNK, self.dtype) for dtype in (dtype_a, dtype_b))
        self._read_a, self._read_b = _reader(dtype_a, self.dtype), _reader(dtype_b, self.dtype)
        self.rel = _memory(CHUNK, self.dtype)
        # What is read from `a` and `b` is needed no longer than until these are known.
        self.d, self.size = (_memory(CHUNK, self.dtype) if own is None else own for own in (self._a, self._b))
        self.nothing = _memory(CHUNK, self.dtype)
        self.integer = np.dtype(f"i{self.dtype.itemsize}")
        self.flag = _memory(CHUNK, np.dtype(np.bool_))
        self._ones = _memory(_SHORT_ROW, np.dtype(np.float32)) if self.short else _memory(_ROW, np.dtype(np.float64))
        self._row_of_ones = _memory(_SHORT_ROW, self.dtype)
        self._ones.fill(1)
        self._row_of_ones.fill(1)
        self._wide: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def read(self, part_a: NDArray[Any], part_b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the two parts as numbers of the work's dtype; infinities of float16 come out as large numbers."""
        return self._one(part_a, self._a, self._read_a), self._one(part_b, self._b, self._read_b)

    def again(self, part_a: NDArray[Any]) -> NDArray[Any]:
        """Return the target's part once more, in the place of the relative errors."""
        return self._one(part_a, None if self._a is None else self.rel, self._read_a)

    def read_without(
        self, part_a: NDArray[Any], part_b: NDArray[Any], places: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the two parts with zeros at these places; the target's in the place of the relative errors."""
        a, b = self.rel[: len(part_a)], self.size[: len(part_b)]
        self._read_a(part_a, a)
        self._read_b(part_b, b)
        a[places] = 0
        b[places] = 0
        return a, b

    @staticmethod
    def _one(part: NDArray[Any], buffer: NDArray[Any] | None, reader: Reader) -> NDArray[Any]:
        if buffer is None:
            return part
        here = buffer[: len(part)]
        reader(part, here)
        return here

    def doubtful(self, sums: Sums) -> bool:
        """Return whether a part may hold an infinity or NaN that `read` did not show as such."""
        return self._doubtful and not (sums.bb < _HALF_LARGE and sums.dd < _HALF_LARGE)

    def total(self, values: NDArray[Any]) -> float:
        """Return the sum of values of the work's dtype, none of them negative."""
        row = self._row_of_ones
        rest = len(values) % len(row)
        end = len(values) - rest
        total = float(np.dot(values[end:], row[:rest])) if rest else 0.0
        if end:
            found = np.empty(end // len(row), values.dtype)
            _dots(values[:end].reshape(-1, len(row)), row, found)
            total += float(found.sum(dtype=np.float64))
        return total

    def sums(self, b: NDArray[Any], d: NDArray[Any]) -> Sums:
        """Return the sums over b and d."""
        if self.short:
            found = _sums(b, d, self._ones)
            least = _TINY * len(b)
            if found.bb >= least and (found.dd >= least or not d.any()):
                return found
        if b.dtype == np.float64:
            return _sums(b, d, np.ones(_ROW) if self.short else self._ones)
        if self._wide is None:
            self._wide = _memory(CHUNK, np.dtype(np.float64)), _memory(CHUNK, np.dtype(np.float64))
        wide_b, wide_d = (buffer[: len(b)] for buffer in self._wide)
        np.copyto(wide_b, b)
        np.copyto(wide_d, d)
        return _sums(wide_b, wide_d, np.ones(_ROW) if self.short else self._ones)


def work_for(dtype_a: np.dtype[Any], dtype_b: np.dtype[Any], precise: bool = False) -> Work:
    """Return this thread's memory for two dtypes; it lasts, as to get it takes longer than to measure a small tensor."""
    known: dict[str, Work] = _OF_THREAD.__dict__
    key = f"{dtype_a.name} {dtype_b.name} {precise}"
    found = known.get(key)
    if found is None:
        found = known[key] = Work(dtype_a, dtype_b, precise)
    return found


def _memory(length: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return zeros that begin with a line of the cache, another line of their page each time: passes over several are
    faster then by up to a third."""
    size = length * dtype.itemsize
    memory = np.zeros(size + _PAGE, np.uint8)  # what is never touched takes no memory
    begin = (next(_LINES) * _LINE - memory.ctypes.data) % _PAGE
    return memory[begin : begin + size].view(dtype)


def _sums(b: NDArray[Any], d: NDArray[Any], ones: NDArray[Any]) -> Sums:
    row = len(ones)
    rest = len(b) % row
    whole = len(b) - rest
    total = Sums(0.0, 0.0, 0.0, 0.0, 0.0)
    if whole:
        rows_b, rows_d = b[:whole].reshape(-1, row), d[:whole].reshape(-1, row)
        found = np.empty((5, len(rows_b)), b.dtype)
        _dots(rows_b, rows_b, found[0])
        _dots(rows_d, rows_d, found[1])
        _dots(rows_d, rows_b, found[2])
        _dots(rows_b, ones, found[3])
        _dots(rows_d, ones, found[4])
        total = Sums(*found.sum(axis=1, dtype=np.float64).tolist())
    if rest:
        end_b, end_d, end = b[whole:], d[whole:], ones[:rest]
        pairs = ((end_b, end_b), (end_d, end_d), (end_d, end_b), (end_b, end), (end_d, end))
        total = Sums(*(before + float(np.dot(x, y)) for before, (x, y) in zip(total, pairs)))
    return total


def rows_squared(table: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of squares of each row."""
    if table.shape[1] > _ROW:
        return np.asarray(np.einsum("ij,ij->i", table, table))
    found = np.empty(len(table), table.dtype)
    _dots(table, table, found)
    return found


def _dots_before_numpy_2(x: NDArray[Any], y: NDArray[Any], out: NDArray[Any]) -> None:
    np.matmul(x[:, None, :], y[..., None], out=out[:, None, None])


_dots: Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], Any] = getattr(np, "vecdot", _dots_before_numpy_2)


def _fits_float32(dtype: np.dtype[Any]) -> bool:
    """Return whether float32 holds every value of the dtype."""
    return dtype == np.float32 or dtype.itemsize < 4


def _reader(dtype: np.dtype[Any], work: np.dtype[Any]) -> Reader:
    """Return what reads a chunk as the work's dtype; the small dtypes through their bits, which is many times faster."""
    if work == np.float32 and dtype.name == "bfloat16":
        return _read_bfloat16
    if work == np.float32 and dtype == _HALF:
        return _read_float16
    if work == np.float32 and dtype.itemsize == 1 and dtype.kind not in "iub":
        table = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
        return lambda part, out: np.copyto(out, np.take(table, part.view(np.uint8), mode="wrap"))
    return lambda part, out: np.copyto(out, part, casting="unsafe")


def _read_bfloat16(part: NDArray[Any], out: NDArray[Any]) -> None:
    bits = out.view(np.uint32)
    np.copyto(bits, part.view(np.uint16))
    np.left_shift(bits, 16, out=bits)


def _read_float16(part: NDArray[Any], out: NDArray[Any]) -> None:
    # Sign, exponent and fraction go to where float32 has them; what is missing is the difference of the exponents'
    # offsets, a factor. Sign extension leaves copies of the sign beside it, which are cleared.
    bits = out.view(np.int32)
    np.copyto(bits, part.view(np.int16))
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, _HALF_BITS, out=bits)
    np.multiply(out, _HALF_SCALE, out=out)
