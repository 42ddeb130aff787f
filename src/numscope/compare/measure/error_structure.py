"""Locates the error in a tensor: everywhere, in a row, a channel, a block, or in single elements.

Rounding is spread over the whole tensor, many bugs are not. The squared error is summed by row and by column, the last
dimension being the columns; in a large tensor, only every fourth chunk that has an error is looked at.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from numscope.compare.measure.chunks import Reals, rows_squared

_CELLS = 64
_CLOSE = 0.98  # share of the squared error that a part must hold to be named
_FEW = 0.3  # share of all parts that may be named
_PARTS = 4096  # more are summed in groups
_LARGE = 1 << 20  # elements
_SINGLE = 8  # elements: a tensor with at most this many wrong ones has an error in single elements


class Spread:
    """Sums the squared error by row and by column of the tensor, coarsely."""

    def __init__(self, shape: tuple[int, ...], elements: int) -> None:
        self.columns = int(shape[-1]) if shape and 0 < shape[-1] <= elements else 1
        if elements % self.columns:
            self.columns = 1  # complex numbers count twice
        self.total_rows = elements // self.columns
        self.row_step = max(1, -(-self.total_rows // _CELLS))
        self.rows = np.zeros(-(-self.total_rows // self.row_step))
        self.by_column = np.zeros(self.columns) if self.columns <= 1 << 16 else None
        self.looked, self.skipped = (np.zeros(len(self.rows), np.bool_) for _ in range(2))
        self.chunks = 0  # those with an error
        self.wrong = 0  # elements, counted until they are more than a few
        self.elements = elements

    def chunk(self, length: int) -> int:
        """Round a length down to whole rows, where a row is not longer."""
        return length - length % self.columns if self.columns <= length else length

    def add(self, error: Reals, begin: int, flag: NDArray[np.bool_], rare: bool = False) -> None:
        """Add the absolute errors of the elements from `begin` on, not skipped if `rare`; `flag` is a buffer."""
        if not rare:
            skip = self.elements > _LARGE and self.wrong > _SINGLE and self.chunks % 4 > 0
            self.chunks += 1
            end = begin + len(error) - 1
            cells = slice(begin // self.columns // self.row_step, end // self.columns // self.row_step + 1)
            (self.skipped if skip else self.looked)[cells] = True
            if skip:
                return
        if self.wrong <= _SINGLE:  # a larger count is not needed
            self.wrong += int(np.count_nonzero(np.not_equal(error, 0, out=flag)))
        first_row = begin // self.columns
        if begin % self.columns or len(error) % self.columns:
            square = np.square(error)
            self.rows[min(first_row // self.row_step, len(self.rows) - 1)] += float(square.sum())
            if self.by_column is not None:
                column = np.arange(begin, begin + len(error)) % self.columns
                self.by_column += np.bincount(column, weights=square, minlength=self.columns)
            return
        table = error.reshape(-1, self.columns)
        cell = (first_row + np.arange(len(table))) // self.row_step
        self.rows += np.bincount(cell, weights=rows_squared(table), minlength=len(self.rows))
        if self.by_column is not None:
            self.by_column += np.einsum("ij,ij->j", table, table)

    def name(self) -> str | None:
        """Return whole, row, channel, block or single; None for a tensor with no error."""
        if self.elements == 1:
            return "whole"
        if not self.wrong:
            return None
        if self.wrong <= max(1, min(_SINGLE, self.elements // 16)):
            return "single"
        # Skipped rows are unknown; rows that were neither looked at nor skipped have no error.
        narrow_rows = _is_narrow(self.rows[self.looked | ~self.skipped])
        narrow_columns = self.by_column is not None and _is_narrow(self.by_column)
        if narrow_rows and narrow_columns:
            return "block"
        if narrow_rows:
            return "row"
        return "channel" if narrow_columns else "whole"


def _is_narrow(parts: NDArray[np.float64]) -> bool:
    """Tell whether a few of the parts hold nearly all of the error."""
    total = float(parts.sum())
    if not 0 < total < np.inf:
        return False
    if len(parts) > _PARTS:  # sum neighbours: sorting all parts would take longer than measuring
        parts = np.add.reduceat(parts, np.arange(0, len(parts), -(-len(parts) // _PARTS)))
    few = int(_FEW * len(parts))
    # All but the few parts share at most 2 % of the error, so no more than a third of all parts can be above 6 % of an
    # even share: a cheap test before sorting.
    if not few or np.count_nonzero(parts > 0.06 * total / len(parts)) > 0.64 * len(parts):
        return False
    return float(np.sort(parts)[-few:].sum()) >= _CLOSE * total


def index_text(flat: int, shape: tuple[int, ...]) -> str | None:
    """Return a flat index as the text of an index of the shape, such as "[0, 3, 17]"; None for -1."""
    if flat < 0:
        return None
    return str([int(part) for part in np.unravel_index(flat, shape)]) if shape else "[]"
