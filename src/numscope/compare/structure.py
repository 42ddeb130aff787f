"""Where in a tensor the error lies: everywhere, in a row, a channel, a block, or in single elements.

Rounding is spread over the whole tensor; bugs often are not. The squared error is summed by row and by column (the last
dimension being the columns); of a large tensor every fourth chunk is enough to see it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_CELLS = 64
_CLOSE = 0.98  # share of the squared error that a part must hold to be named
_LARGE = 1 << 20


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
        self.wrong = 0
        self.elements = elements

    def chunk(self, length: int) -> int:
        """Return a length near the given one that ends with a row, where rows are shorter than that."""
        return length - length % self.columns if self.columns <= length else length

    def add(self, error: NDArray[Any], begin: int) -> None:
        """Add the absolute errors of the elements from `begin` on."""
        if self.elements > _LARGE and (begin // len(error)) % 4:
            return
        self.wrong += int(np.count_nonzero(error))
        square = np.square(error)
        first_row = begin // self.columns
        if begin % self.columns or len(error) % self.columns:
            self.rows[min(first_row // self.row_step, len(self.rows) - 1)] += float(square.sum())
            if self.by_column is not None:
                place = np.arange(begin, begin + len(error)) % self.columns
                self.by_column += np.bincount(place, weights=square, minlength=self.columns)
            return
        table = square.reshape(-1, self.columns)
        cells = (first_row + np.arange(len(table))) // self.row_step
        self.rows += np.bincount(cells, weights=table.sum(axis=1), minlength=len(self.rows))
        if self.by_column is not None:
            self.by_column += table.sum(axis=0)

    def name(self) -> str | None:
        """Return whole, row, channel, block or single; None for a tensor with no error."""
        if self.elements == 1:
            return "whole"
        if not self.wrong:
            return "whole" if self.elements > _LARGE else None
        if self.wrong <= max(1, min(8, self.elements // 16)):
            return "single"
        total = float(self.rows.sum())
        if not 0 < total < np.inf:
            return "whole"
        narrow_rows = len(self.rows) >= 4 and _needed(self.rows / total) <= 0.3
        columns = self.by_column
        narrow_columns = columns is not None and len(columns) >= 4 and _needed(columns / total) <= 0.3
        if narrow_rows and narrow_columns:
            return "block"
        if narrow_rows:
            return "row"
        return "channel" if narrow_columns else "whole"


def _needed(shares: NDArray[np.float64]) -> float:
    """Return which share of the parts, the largest first, holds nearly all of the error."""
    ordered = np.sort(shares)[::-1].cumsum()
    return (int(np.searchsorted(ordered, _CLOSE)) + 1) / len(shares)


def index_text(place: int, shape: tuple[int, ...]) -> str | None:
    """Return a flat index as the text of a full one: "[0, 3, 17]"."""
    if place < 0:
        return None
    return str([int(part) for part in np.unravel_index(place, shape)]) if shape else "[]"
