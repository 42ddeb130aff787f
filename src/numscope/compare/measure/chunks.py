"""Reads two arrays as floating-point numbers, a chunk at a time, into memory that stays in the cache.

Narrower dtypes are read as float32, which holds all their values; two float32 arrays are used as they are, and all other
dtypes are read as float64. Sums have float64 accumulators. For dtypes of up to 16 bits, rows of 2048 elements are summed
in float32 first: float32 holds a product of two such numbers exactly, and the rounding of a row is below 1e-6.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from numscope.core.dtypes import AnyArray, AnyDtype

# Elements: enough that the overhead of a numpy call is small, few enough that several such arrays fit into a cache.
CHUNK = 96 * 1024
_LINE, _PAGE = 64, 4096  # bytes
_LINES = itertools.cycle(range(5, 64, 9))
_SHORT_ROW, _ROW = 2048, 8192  # elements: BLAS libraries start threads beyond 10,000
_TINY = 1e-30  # float32 may have lost the squares of some elements where the mean square is below this
_HALF = np.dtype(np.float16)
_HALF_BITS, _HALF_SCALE = np.int32(-0x70000001), np.float32(2.0**112)
_HALF_LARGE = 2.0**30  # no element of a chunk is beyond 2¹⁵ where the sum of squares is below this

_OF_THREAD = threading.local()

Reals = NDArray[np.floating]  # float32 or float64
Reader = Callable[[AnyArray, Reals], None]


class Sums(NamedTuple):
    """Sums over a chunk of b and d = a - b."""

    bb: float
    dd: float
    db: float
    b: float
    d: float


class Work:
    """Buffers that all chunks reuse: getting new memory would cost more than the arithmetic."""

    def __init__(self, dtype_a: AnyDtype, dtype_b: AnyDtype, precise: bool) -> None:
        narrow = _fits_float32(dtype_a) and _fits_float32(dtype_b)
        self.dtype = np.dtype(np.float32 if narrow else np.float64)
        self.short = narrow and dtype_a.itemsize <= 2 and dtype_b.itemsize <= 2 and not precise
        self._doubtful = _HALF in (dtype_a, dtype_b)
        self._a, self._b = (None if dtype == self.dtype else _memory(CHUNK, self.dtype) for dtype in (dtype_a, dtype_b))
        self._read_a, self._read_b = _reader(dtype_a, self.dtype), _reader(dtype_b, self.dtype)
        self.rel = _memory(CHUNK, self.dtype)
        # Differences and sizes overwrite the buffers that `a` and `b` were read into, if there are any.
        self.d, self.size = (_memory(CHUNK, self.dtype) if own is None else own for own in (self._a, self._b))
        self.nothing = _memory(CHUNK, self.dtype)
        self.integer = np.dtype(f"i{self.dtype.itemsize}")
        self.flag = _memory(CHUNK, np.dtype(np.bool_))
        self._ones = _memory(_SHORT_ROW, np.dtype(np.float32)) if self.short else _memory(_ROW, np.dtype(np.float64))
        self._row_of_ones = _memory(_SHORT_ROW, self.dtype)
        self._ones.fill(1)
        self._row_of_ones.fill(1)
        self._wide: tuple[Reals, Reals] | None = None

    def read(self, part_a: AnyArray, part_b: AnyArray) -> tuple[Reals, Reals]:
        """Return the two parts in the dtype of the work; an infinity of float16 becomes a large number."""
        return self._one(part_a, self._a, self._read_a), self._one(part_b, self._b, self._read_b)

    def again(self, part_a: AnyArray) -> Reals:
        """Read the target's part again, into the buffer of the relative errors."""
        return self._one(part_a, None if self._a is None else self.rel, self._read_a)

    def read_without(self, part_a: AnyArray, part_b: AnyArray, indices: NDArray[np.intp]) -> tuple[Reals, Reals]:
        """Read the two parts with zeros at these indices; the target's into the buffer of the relative errors."""
        a, b = self.rel[: len(part_a)], self.size[: len(part_b)]
        self._read_a(part_a, a)
        self._read_b(part_b, b)
        a[indices] = 0
        b[indices] = 0
        return a, b

    @staticmethod
    def _one(part: AnyArray, buffer: Reals | None, reader: Reader) -> Reals:
        if buffer is None:
            return part
        here = buffer[: len(part)]
        reader(part, here)
        return here

    def doubtful(self, sums: Sums) -> bool:
        """Tell whether a part may hold an infinity or NaN of float16, which `read` turned into a large number."""
        return self._doubtful and not (sums.bb < _HALF_LARGE and sums.dd < _HALF_LARGE)

    def total(self, values: Reals) -> float:
        """Return the sum of values of the work's dtype, none of them negative."""
        row = self._row_of_ones
        rest = len(values) % len(row)
        end = len(values) - rest
        total = float(np.dot(values[end:], row[:rest])) if rest else 0.0
        if end:
            of_rows = np.empty(end // len(row), values.dtype)
            _dots(values[:end].reshape(-1, len(row)), row, of_rows)
            total += float(of_rows.sum(dtype=np.float64))
        return total

    def sums(self, b: Reals, d: Reals) -> Sums:
        """Return the sums over b and d."""
        if self.short:
            sums = _sums(b, d, self._ones)
            least = _TINY * len(b)
            if sums.bb >= least and (sums.dd >= least or not d.any()):
                return sums
        if b.dtype == np.float64:
            return _sums(b, d, np.ones(_ROW) if self.short else self._ones)
        if self._wide is None:
            self._wide = _memory(CHUNK, np.dtype(np.float64)), _memory(CHUNK, np.dtype(np.float64))
        wide_b, wide_d = (buffer[: len(b)] for buffer in self._wide)
        np.copyto(wide_b, b)
        np.copyto(wide_d, d)
        return _sums(wide_b, wide_d, np.ones(_ROW) if self.short else self._ones)


def work_for(dtype_a: AnyDtype, dtype_b: AnyDtype, precise: bool = False) -> Work:
    """Return this thread's buffers for two dtypes; they are kept, because measuring a small tensor takes less than new ones."""
    works: dict[str, Work] = _OF_THREAD.__dict__
    key = f"{dtype_a.name} {dtype_b.name} {precise}"
    work = works.get(key)
    if work is None:
        work = works[key] = Work(dtype_a, dtype_b, precise)
    return work


def _memory(length: int, dtype: AnyDtype) -> AnyArray:
    """Return zeros that begin at a cache line, at another one of the page each time.

    Passes over several arrays are up to a third faster if the arrays do not begin at the same line of their pages.
    """
    size = length * dtype.itemsize
    memory = np.zeros(size + _PAGE, np.uint8)  # the system provides a page when it is first written to
    begin = (next(_LINES) * _LINE - memory.ctypes.data) % _PAGE
    return memory[begin : begin + size].view(dtype)


def _sums(b: Reals, d: Reals, ones: Reals) -> Sums:
    row = len(ones)
    rest = len(b) % row
    whole = len(b) - rest
    total = Sums(0.0, 0.0, 0.0, 0.0, 0.0)
    if whole:
        rows_b, rows_d = b[:whole].reshape(-1, row), d[:whole].reshape(-1, row)
        of_rows = np.empty((len(Sums._fields), len(rows_b)), b.dtype)
        for (x, y), out in zip(_factors(rows_b, rows_d, ones), of_rows):
            _dots(x, y, out)
        total = Sums(*of_rows.sum(axis=1, dtype=np.float64).tolist())
    if rest:
        factors = _factors(b[whole:], d[whole:], ones[:rest])
        total = Sums(*(before + float(np.dot(x, y)) for before, (x, y) in zip(total, factors)))
    return total


def _factors(b: Reals, d: Reals, ones: Reals) -> tuple[tuple[Reals, Reals], ...]:
    """Return the factors of each sum, in the order of the fields of Sums."""
    return ((b, b), (d, d), (d, b), (b, ones), (d, ones))


def rows_squared(table: Reals) -> Reals:
    """Return the sum of squares of each row."""
    _, columns = table.shape
    if columns > _ROW:
        return np.asarray(np.einsum("ij,ij->i", table, table))
    squares = np.empty(len(table), table.dtype)
    _dots(table, table, squares)
    return squares


def _dots_before_numpy_2(x: Reals, y: Reals, out: Reals) -> None:
    np.matmul(x[:, None, :], y[..., None], out=out[:, None, None])


_dots: Callable[[Reals, Reals, Reals], object] = getattr(np, "vecdot", _dots_before_numpy_2)


def _fits_float32(dtype: AnyDtype) -> bool:
    """Tell whether float32 holds every value of the dtype."""
    return dtype == np.float32 or dtype.itemsize < 4


def _reader(dtype: AnyDtype, work: AnyDtype) -> Reader:
    """Return the function that reads a chunk; small dtypes are read through their bits, which is many times faster."""
    if work == np.float32 and dtype.name == "bfloat16":
        return _read_bfloat16
    if work == np.float32 and dtype == _HALF:
        return _read_float16
    if work == np.float32 and dtype.itemsize == 1 and dtype.kind not in "iub":
        table = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
        return lambda part, out: np.copyto(out, np.take(table, part.view(np.uint8), mode="wrap"))
    return lambda part, out: np.copyto(out, part, casting="unsafe")


def _read_bfloat16(part: AnyArray, out: Reals) -> None:
    bits = out.view(np.uint32)
    np.copyto(bits, part.view(np.uint16))
    np.left_shift(bits, 16, out=bits)


def _read_float16(part: AnyArray, out: Reals) -> None:
    # Shift sign, exponent and fraction to their positions in float32, and clear the copies of the sign that sign
    # extension leaves. The two formats have different exponent biases: a multiplication corrects that.
    bits = out.view(np.int32)
    np.copyto(bits, part.view(np.int16))
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, _HALF_BITS, out=bits)
    np.multiply(out, _HALF_SCALE, out=out)
