"""Fingerprints of a tensor of weights: of the whole, of each row, and of each column.

Rows and columns are what conversions move: to fuse, split, interleave, pad and transpose is to put rows elsewhere. A line
(a row or a column) has a hash of its bits, which is the same wherever it lies and whether it is a row or a column; four
signed sums of its numbers, which tell how far it is from another line; and its norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from numscope.core.dtypes import AnyArray, AnyDtype
from numscope.fingerprint.chunks import STEP, Measure, Scratch
from numscope.fingerprint.constants import splitmix_array
from numscope.fingerprint.kinds import kind_of
from numscope.weights.tensor import Lines, Summary, Tensor

SUMS = 4  # of a line: two lines of unlike numbers agree in all to 1 % with a chance of some 1e-8
_FACTORS = 3  # of a hash, of 21 bits each: 2^21 · 2^16 · 65536 elements stay below 2^53, so that float64 sums are exact
_FACTOR_BITS = 21
_EXACT = 1 << 16  # elements whose products are summed exactly
_SEED_FACTORS, _SEED_SIGNS = 6100, 6200
_BLOCK = 1 << 18  # elements worked on at once
_PRIME = np.uint64(0x9E3779B97F4A7C15)


def join(parts: Iterable[Lines]) -> Lines:
    """Return lines of the same width one after the other."""
    held = list(parts)
    return Lines(
        held[0].width,
        np.concatenate([part.hash for part in held]),
        np.concatenate([part.sums for part in held]),
        np.concatenate([part.norm for part in held]),
    )


def rows_of(tensor: Tensor, dtype: AnyDtype) -> Lines:
    """Return the fingerprints of the rows of a tensor, whose numbers are first put into a dtype."""
    width = tensor.width
    total = _Sums(tensor.rows)
    for start, block in tensor.blocks(max(1, _BLOCK // max(1, width))):
        rows = slice(start, start + len(block))
        for first in range(0, width, _EXACT):
            part = block[:, first : first + _EXACT]
            numbers, words = _numbers(part, dtype)
            index = first + np.arange(part.shape[1])
            total.add(rows, [word @ _factors(first, part.shape[1]) for word in words])
            total.sums[rows] += numbers @ _signs(first, index.size)
            total.square[rows] += np.einsum("ij,ij->i", numbers, numbers, dtype=np.float64)
    return total.lines(width)


def columns_of(tensor: Tensor, dtype: AnyDtype) -> Lines:
    """Return the fingerprints of the columns: of each matrix of the last two axes."""
    height = tensor.shape[-2] if len(tensor.shape) > 1 else 1
    width = tensor.width
    matrices = tensor.rows // max(1, height)
    total = _Sums(matrices * width)
    step = max(1, min(_BLOCK // max(1, width), _EXACT))
    for matrix in range(matrices):
        lines = slice(matrix * width, (matrix + 1) * width)
        for first in range(0, height, step):
            start = matrix * height + first
            block = tensor.elements(start, start + min(step, height - first))
            numbers, words = _numbers(block, dtype)
            turned = numbers.T
            total.add(lines, [word.T @ _factors(first, len(block)) for word in words])
            total.sums[lines] += turned @ _signs(first, len(block))
            total.square[lines] += np.einsum("ij,ij->j", numbers, numbers, dtype=np.float64)
    return total.lines(height)


class _Sums:
    """The running fingerprints of lines."""

    def __init__(self, lines: int) -> None:
        self.hash = np.zeros(lines, np.uint64)
        self.sums = np.zeros((lines, SUMS), np.float64)
        self.square = np.zeros(lines, np.float64)

    def add(self, lines: slice, words: list[NDArray[np.float64]]) -> None:
        """Add the exact sums of a part of the lines, each of a word of 16 bits."""
        for number, word in enumerate(words):
            for factor in range(_FACTORS):
                spread = splitmix_array(_SEED_FACTORS, np.array([number * _FACTORS + factor]))[0] | np.uint64(1)
                with np.errstate(over="ignore"):
                    self.hash[lines] += word[:, factor].astype(np.uint64) * spread

    def lines(self, width: int) -> Lines:
        return Lines(width, self.hash, self.sums.astype(np.float32), np.sqrt(self.square).astype(np.float32))


def _numbers(block: AnyArray, dtype: AnyDtype) -> tuple[NDArray[np.float32], list[NDArray[np.float64]]]:
    """Return the finite numbers of a block, and the words of 16 bits of what they are in a dtype."""
    with np.errstate(over="ignore", invalid="ignore"):
        held = np.ascontiguousarray(block if block.dtype == dtype else block.astype(dtype))
        numbers = held.astype(np.float32)
    if not np.isfinite(numbers.sum()):
        numbers = np.where(np.isfinite(numbers), numbers, np.float32(0))
    if held.dtype.itemsize == 1:
        return numbers, [held.view(np.uint8).astype(np.float64)]
    words = held.view(np.uint16).reshape(*held.shape, -1)
    return numbers, [words[..., part].astype(np.float64) for part in range(words.shape[-1])]


@lru_cache(maxsize=64)
def _factors(first: int, count: int) -> NDArray[np.float64]:
    """Return the factors of the hash of some elements of a line."""
    index = (first + np.arange(count))[:, None] * _FACTORS + np.arange(_FACTORS)
    return (splitmix_array(_SEED_FACTORS, index) >> np.uint64(64 - _FACTOR_BITS)).astype(np.float64)


@lru_cache(maxsize=64)
def _signs(first: int, count: int) -> NDArray[np.float32]:
    """Return the signs of the sums of some elements of a line."""
    bits = splitmix_array(_SEED_SIGNS, first + np.arange(count))[:, None] >> np.arange(SUMS, dtype=np.uint64)
    return (1 - 2 * (bits & np.uint64(1)).astype(np.float32)).astype(np.float32)


def summarise(tensor: Tensor, lines: bool = True) -> Summary:
    """Measure a tensor: the fingerprint of the whole and, where it has more rows than one, those of its lines."""
    dtype = dtype_of(tensor)
    kind = kind_of(dtype)
    if kind is None:
        raise TypeError(f"no fingerprint is defined for {tensor.name}, of {tensor.dtype}")
    parts = 2 if dtype.kind == "c" else 1
    measure = Measure(kind, tensor.size * parts, Scratch())
    with np.errstate(all="ignore"):
        for raw in _chunks(tensor, STEP * kind.size):
            measure.take(raw)
        measure.finish()
    mean = measure.mean()
    zero, non_finite = measure.zero, measure.nan + measure.posinf + measure.neginf
    if parts == 2:  # elements, not their parts
        counts = [(np.count_nonzero(block == 0), np.count_nonzero(~np.isfinite(block))) for _, block in tensor.blocks()]
        zero, non_finite = map(int, np.array(counts, np.int64).reshape(-1, 2).sum(0))
    is_matrix = lines and not tensor.is_vector and parts == 1
    return Summary(
        measure.hash,
        float("nan") if mean != mean else measure.min,
        float("nan") if mean != mean else measure.max,
        mean,
        measure.l2,
        zero,
        non_finite,
        np.asarray(measure.sketch, np.float64).copy(),
        rows_of(tensor, dtype) if is_matrix else None,
        columns_of(tensor, dtype) if is_matrix else None,
    )


def dtype_of(tensor: Tensor) -> AnyDtype:
    """Return the numpy dtype of a tensor."""
    from numscope.store.dtypes import numpy_dtype

    kind = numpy_dtype(tensor.dtype)
    if kind is None:
        raise TypeError(f"{tensor.name} has elements of the type {tensor.dtype}")
    return kind


def _chunks(tensor: Tensor, size: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of a tensor, in parts of the size that a measure takes."""
    waiting = np.empty(0, np.uint8)
    for _, block in tensor.blocks():
        waiting = np.concatenate([waiting, np.ascontiguousarray(block).reshape(-1).view(np.uint8)])
        whole = len(waiting) // size * size
        for start in range(0, whole, size):
            yield waiting[start : start + size]
        waiting = waiting[whole:]
    if len(waiting):
        yield waiting
