"""Where in a tensor the error lies: everywhere, in a row, a channel, a block, or in single elements.

Rounding is spread over the whole tensor; bugs often are not. The error is summed over a grid of a few thousand cells
(the tensor seen as rows × columns, the last dimension being the columns), so that the cost does not grow with it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_CELLS = 64
_CLOSE = 0.98  # share of the squared error that a part must hold to be named


class Spread:
    """Sums the squared error by row and by column of the tensor, coarsely."""

    def __init__(self, shape: tuple[int, ...], elements: int) -> None:
        self.columns = int(shape[-1]) if shape and shape[-1] > 0 else 1
        self.rows = max(1, elements // self.columns)
        self.row_step = max(1, -(-self.rows // _CELLS))
        self.column_step = max(1, -(-self.columns // _CELLS))
        self.grid = np.zeros((-(-self.rows // self.row_step), -(-self.columns // self.column_step)))
        self.wrong = 0
        self.elements = elements

    def add(self, error: NDArray[np.float64], begin: int) -> None:
        """Add the absolute errors of the elements from `begin` on."""
        self.wrong += int(np.count_nonzero(error))
        if self.elements > 1 << 20 and (begin >> 15) % 4:
            return  # every fourth chunk of a large tensor is enough to see the structure
        place = np.arange(begin, begin + len(error))
        row, column = place // self.columns // self.row_step, place % self.columns // self.column_step
        flat = np.clip(row, 0, self.grid.shape[0] - 1) * self.grid.shape[1] + column
        self.grid += np.bincount(flat, weights=error * error, minlength=self.grid.size).reshape(self.grid.shape)

    def name(self) -> str | None:
        """Return whole, row, channel, block or single; None for a tensor with no error."""
        if not self.wrong:
            return None
        if self.elements == 1:
            return "whole"
        if self.wrong <= max(1, min(8, self.elements // 16)):
            return "single"
        total = self.grid.sum()
        if not total > 0 or not np.isfinite(total):
            return "whole"
        rows, columns = self.grid.sum(axis=1) / total, self.grid.sum(axis=0) / total
        row_share, column_share = _needed(rows), _needed(columns)
        narrow_rows = len(rows) >= 4 and row_share <= 0.3
        narrow_columns = len(columns) >= 4 and column_share <= 0.3
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
    size = int(np.prod(shape, dtype=np.int64)) if shape else 1
    if place >= size:
        place //= 2  # a complex number counts as two
    return str([int(part) for part in np.unravel_index(place, shape)]) if shape else "[]"
