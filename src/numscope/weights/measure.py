"""Measures two sets of lines element by element, in one pass of bounded memory: how far apart, and in what way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from numscope.core.dtypes import FLOATS, AnyArray
from numscope.store.dtypes import numpy_dtype
from numscope.weights.matching.lines import Placement
from numscope.weights.summary import dtype_of
from numscope.weights.tensor import BLOCK, Tensor

if TYPE_CHECKING:
    from concurrent.futures import Future

_BETWEEN = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")  # dtypes through which weights go, the finest first
_READ = 1 << 24  # bytes of a side that are read at once, where both are only compared
_FEW = 4  # differing elements that are looked at one by one
_HELD = 1 << 29  # bytes of a tensor that is read whole, where its lines lie apart


@dataclass(frozen=True)
class Element:
    """One differing element: its line and its place there, both values, and the bits in which they differ."""

    line: int
    at: int
    a: float
    b: float
    bits: tuple[int, ...]


@dataclass
class Difference:
    """The sums over all elements of two sets of lines; `a` is the suspect's, `b` the reference's."""

    elements: int = 0
    differing: int = 0
    square: float = 0.0  # of the difference
    total: float = 0.0
    square_a: float = 0.0
    square_b: float = 0.0
    product: float = 0.0
    sum_a: float = 0.0
    fourth_a: float = 0.0
    largest: float = 0.0
    largest_a: float = 0.0
    non_finite_a: int = 0
    non_finite_b: int = 0
    is_cast_of_b: bool = True  # every element of a is that of b in a's dtype
    is_cast_of_a: bool = True
    is_toward_zero: bool = True  # every element of a is that of b, or the next one toward zero
    between: list[str] = field(default_factory=lambda: list(_BETWEEN))  # dtypes whose rounding of b gives a
    few: list[Element] = field(default_factory=list)
    line_error: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # relative, by line
    line_differs: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    column_differs: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    crest: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # of b: largest over root mean square

    @property
    def relative(self) -> float:
        """The relative L2 error."""
        if self.square == 0:
            return 0.0
        return math.sqrt(self.square / self.square_b) if self.square_b else math.inf

    @property
    def cosine(self) -> float:
        """The cosine of the angle between both sides; 0 where one is zero."""
        size = math.sqrt(self.square_a * self.square_b)
        return self.product / size if size else 0.0

    @property
    def scale(self) -> float:
        """The factor by which the reference comes nearest to the suspect."""
        return self.product / self.square_b if self.square_b else math.nan

    @property
    def beside_scale(self) -> float:
        """The part left beside that factor, relative to the suspect."""
        if not self.square_a or not self.square_b:
            return math.inf
        return math.sqrt(max(0.0, 1 - self.cosine**2))

    @property
    def offset(self) -> float:
        """The mean of the difference."""
        return self.total / self.elements if self.elements else 0.0

    @property
    def beside_offset(self) -> float:
        """The part left beside that mean, relative to it."""
        if not self.offset:
            return math.inf
        return math.sqrt(max(0.0, self.square / self.elements / self.offset**2 - 1))


class Gathered:
    """The lines of some tensors, numbered through, read in any order."""

    def __init__(self, tensors: Sequence[Tensor], axis: int) -> None:
        self._tensors, self._axis = tensors, axis
        counts = [tensor.size // max(1, tensor.shape[-2] if axis else tensor.width) for tensor in tensors]
        self._starts = np.cumsum([0, *counts])
        self._held: AnyArray | None = None  # the whole of one tensor
        self._held_number = -1

    def take(self, lines: NDArray[np.int64]) -> AnyArray:
        """Return some lines as rows."""
        which = np.searchsorted(self._starts, lines, side="right") - 1
        cuts = np.flatnonzero((np.diff(lines) != 1) | (np.diff(which) != 0)) + 1
        parts = []
        for run in np.split(np.arange(len(lines)), cuts):
            number = int(which[run[0]])
            first = int(lines[run[0]] - self._starts[number])
            parts.append(self._run(number, first, first + len(run)))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _run(self, number: int, start: int, stop: int) -> AnyArray:
        tensor = self._tensors[number]
        is_small = tensor.size * 4 <= _HELD
        if not self._axis and not (is_small and stop - start < tensor.rows_at_once() // 4):
            return tensor.elements(start, stop)
        if self._held is None or self._held_number != number:
            self._held, self._held_number = tensor.elements(), number
        whole = self._held
        if not self._axis:
            return whole[start:stop]
        columns = whole.reshape(-1, tensor.shape[-2], tensor.width).swapaxes(1, 2).reshape(-1, tensor.shape[-2])
        return columns[start:stop]


def directly(a: Tensor, b: Tensor) -> Difference:
    """Measure two tensors of the same shape; two that have the same bits are only read."""
    if a.dtype == b.dtype and same_content(a, b):
        return Difference(elements=a.size, between=[], line_error=np.zeros(a.rows), line_differs=np.zeros(a.rows, bool))
    if a.dtype != b.dtype and a.dtype in FLOATS and b.dtype in FLOATS:
        cast = _cast(a, b)
        if cast is not None:
            return cast
    return _over(a.rows, a.width, a.elements, b.elements, a, b)


def _cast(a: Tensor, b: Tensor) -> Difference | None:
    """Measure two tensors of which one is the other's cast to a shorter dtype; return None where it is not so."""
    fine, coarse = (a, b) if FLOATS[a.dtype].digits >= FLOATS[b.dtype].digits else (b, a)
    kind = dtype_of(coarse)
    result = Difference(elements=a.size, differing=a.size, between=[], is_cast_of_a=fine is a, is_cast_of_b=fine is b)
    step = a.rows_at_once()
    with np.errstate(over="ignore", invalid="ignore"):
        for start, block in fine.blocks(step):
            short = coarse.elements(start, start + len(block))
            if not _same_bits(short, block.astype(kind)):
                return None
            long = block if block.dtype.itemsize >= 4 else block.astype(np.float32)
            lost = (long - short.astype(long.dtype)).reshape(-1)
            square, square_b = float(np.dot(lost, lost)), float(np.dot(long.reshape(-1), long.reshape(-1)))
            if not (math.isfinite(square) and math.isfinite(square_b)):
                return None
            result.square += square
            result.square_b += square_b
    result.differing = a.size if result.square else 0
    result.line_error, result.line_differs = np.zeros(0), np.zeros(0, bool)
    return result


def same_content(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors of the same dtype and shape have the same bits, as fast as they can be read."""
    return all(_same_bits(*blocks) for blocks in _ahead(a, b))


def _ahead(a: Tensor, b: Tensor) -> Iterator[tuple[AnyArray, AnyArray]]:
    """Yield the same rows of both sides; the next ones are read while these are looked at, each side by a thread."""
    step = max(1, _READ // max(1, a.width * dtype_of(a).itemsize))
    starts = list(range(0, a.rows, step))
    if len(starts) < 2:
        yield a.elements(), b.elements()
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:

        def begin(tensor: Tensor, start: int) -> Future[AnyArray]:
            return pool.submit(tensor.elements, start, min(start + step, a.rows))

        waiting_a, waiting_b = begin(a, 0), begin(b, 0)
        for following in [*starts[1:], -1]:
            ours, theirs = waiting_a.result(), waiting_b.result()
            if following >= 0:
                waiting_a, waiting_b = begin(a, following), begin(b, following)
            yield ours, theirs


def placed(a: Sequence[Tensor], b: Sequence[Tensor], placement: Placement) -> Difference:
    """Measure the reference's lines against the suspect's that belong to them; those without any are left out."""
    ours, theirs = Gathered(a, placement.axes.a), Gathered(b, placement.axes.b)
    there = np.flatnonzero(placement.order >= 0)
    width = b[0].shape[-2] if placement.axes.b else b[0].width

    def read_a(start: int, stop: int) -> AnyArray:
        return ours.take(placement.order[there[start:stop]])

    def read_b(start: int, stop: int) -> AnyArray:
        return theirs.take(there[start:stop])

    if len({tensor.dtype for tensor in (*a, *b)}) == 1:
        step = max(1, _READ // max(1, width * dtype_of(b[0]).itemsize))
        starts = range(0, len(there), step)
        if all(_same_bits(read_a(n, n + step), read_b(n, n + step)) for n in starts):
            return Difference(elements=len(there) * width, between=[], line_error=np.zeros(len(there)))
    return _over(len(there), width, read_a, read_b, a[0], b[0])


def _over(rows: int, width: int, read_a: object, read_b: object, a: Tensor, b: Tensor) -> Difference:
    result = Difference(
        line_error=np.zeros(rows),
        line_differs=np.zeros(rows, bool),
        column_differs=np.zeros(width, bool),
        crest=np.ones(rows),
    )
    step = max(1, BLOCK // 4 // max(1, width * 4))
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        block_a, block_b = read_a(start, stop), read_b(start, stop)  # type: ignore[operator]
        _add(result, start, block_a, block_b)
    finest = max((FLOATS[t.dtype].digits for t in (a, b) if t.dtype in FLOATS), default=0)
    result.between = [name for name in result.between if FLOATS[name].digits < finest] if result.differing else []
    return result


def _add(result: Difference, start: int, a: AnyArray, b: AnyArray) -> None:
    result.elements += a.size
    if a.dtype == b.dtype and _same_bits(a, b):
        _add_sums(result, start, a, b, None)
        return
    _add_sums(result, start, a, b, _differs(a, b))


def _same_bits(a: AnyArray, b: AnyArray) -> bool:
    a, b = np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)
    word = np.uint64 if a.nbytes % 8 == 0 and b.nbytes % 8 == 0 else np.uint8
    return bool(np.array_equal(a.view(np.uint8).view(word), b.view(np.uint8).view(word)))


def _words(array: AnyArray) -> AnyArray:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}") if array.dtype.itemsize <= 8 else array


def _differs(a: AnyArray, b: AnyArray) -> NDArray[np.bool_]:
    if a.dtype == b.dtype:
        return np.asarray(_words(a) != _words(b))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(a.astype(np.float64) != b.astype(np.float64))


def _add_sums(result: Difference, start: int, a: AnyArray, b: AnyArray, differs: NDArray[np.bool_] | None) -> None:
    with np.errstate(invalid="ignore", over="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
    bad_x, bad_y = ~np.isfinite(x), ~np.isfinite(y)
    if bad_x.any() or bad_y.any():
        result.non_finite_a += int(bad_x.sum())
        result.non_finite_b += int(bad_y.sum())
        bad = bad_x | bad_y
        x, y = np.where(bad, 0.0, x), np.where(bad, 0.0, y)
    rows = slice(start, start + len(x))
    square_x = np.einsum("ij,ij->i", x, x)
    result.square_a += float(square_x.sum())
    result.sum_a += float(x.sum())
    quartic = x * x
    result.fourth_a += float(np.einsum("ij,ij->", quartic, quartic))
    result.largest_a = max(result.largest_a, float(np.abs(x).max(initial=0.0)))
    if differs is None:
        square_y, product = square_x, square_x
        result.square_b += float(square_x.sum())
        result.product += float(square_x.sum())
    else:
        difference = x - y
        square_y = np.einsum("ij,ij->i", y, y)
        product = np.einsum("ij,ij->i", x, y)
        square = np.einsum("ij,ij->i", difference, difference)
        result.square += float(square.sum())
        result.total += float(difference.sum())
        result.square_b += float(square_y.sum())
        result.product += float(product.sum())
        result.largest = max(result.largest, float(np.abs(difference).max(initial=0.0)))
        norm = np.where(square_y > 0, square_y, square_x)
        result.line_error[rows] = np.sqrt(np.divide(square, norm, out=np.zeros_like(square), where=norm > 0))
        result.line_differs[rows] = differs.any(axis=1)
        result.column_differs |= differs.any(axis=0)
        _add_relations(result, start, a, b, x, y, differs)
    peak = np.abs(y).max(axis=1, initial=0.0)
    _, width = x.shape
    rms = np.sqrt(square_y / max(1, width))
    result.crest[rows] = np.divide(peak, rms, out=np.ones_like(peak), where=rms > 0)


def _add_relations(
    result: Difference,
    start: int,
    a: AnyArray,
    b: AnyArray,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    differs: NDArray[np.bool_],
) -> None:
    count = int(differs.sum())
    if count and result.differing + count <= _FEW:
        for line, at in np.argwhere(differs):
            bits: tuple[int, ...] = ()
            if a.dtype == b.dtype and a.dtype.itemsize <= 8:
                word = int(_words(a)[line, at]) ^ int(_words(b)[line, at])
                bits = tuple(bit for bit in range(8 * a.dtype.itemsize) if word >> bit & 1)
            result.few.append(Element(start + int(line), int(at), float(x[line, at]), float(y[line, at]), bits))
    result.differing += count
    if result.differing > _FEW:
        result.few = []
    with np.errstate(invalid="ignore", over="ignore"):
        if a.dtype != b.dtype:
            result.is_cast_of_b = result.is_cast_of_b and _same_bits(a, b.astype(a.dtype))
            result.is_cast_of_a = result.is_cast_of_a and _same_bits(b, a.astype(b.dtype))
        elif count:
            result.is_cast_of_a = result.is_cast_of_b = False
        for name in list(result.between):
            between = numpy_dtype(name)
            if not _same_bits(a, b.astype(between).astype(a.dtype)):
                result.between.remove(name)
    forms = [FLOATS[array.dtype.name] for array in (a, b) if array.dtype.name in FLOATS]
    if not forms or not result.is_toward_zero:
        return
    form = min(forms, key=lambda one: one.digits)
    size = np.maximum(np.abs(x), np.abs(y))
    unit = np.maximum(np.ldexp(1.0, np.frexp(size)[1] - form.digits), form.smallest)  # of the last place
    off = (np.abs(y) - np.abs(x)) / unit
    same_sign = bool(((x * y >= 0) | (unit == form.smallest)).all())
    result.is_toward_zero = bool(result.is_toward_zero and same_sign and (off >= 0).all() and (off <= 1).all())
