"""The lines that the Triton kernels leave, one per launch and content: joined on the host into fingerprints.

This runs in the writer's thread. numpy releases Python's lock to the job's thread in every call on more than 500 numbers,
and then has to wait for it: so the fewer calls the better.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from numscope.fingerprint.constants import SKETCH
from numscope.fingerprint.cuda import kernels
from numscope.fingerprint.rows import Rows


def write_lines(raw: NDArray[np.int64], about: NDArray[np.int64], rows: Rows) -> None:
    """Join the lines that belong to one row, and write the rows; of each line: row, elements, real elements."""
    floats = raw.view(np.float64)
    sums, counts = floats[:, kernels.SUM : kernels.SQUARES_SMALL + 1], raw[:, kernels.NAN : kernels.HASH + 1]
    sketch, low, high = floats[:, :SKETCH], floats[:, kernels.MIN], floats[:, kernels.MAX]
    row, first = np.unique(about[:, 0], return_index=True)
    with np.errstate(all="ignore"):
        if len(row) < len(about):  # contents that took several launches
            order = np.argsort(about[:, 0], kind="stable")
            starts = np.searchsorted(about[order, 0], row)
            sums, counts, sketch = (np.add.reduceat(part[order], starts, axis=0) for part in (sums, counts, sketch))
            low, high = np.minimum.reduceat(low[order], starts), np.maximum.reduceat(high[order], starts)
            about = about[first]
        integers = np.empty((len(about), 5), np.int64)
        integers[:, 0], integers[:, 1:] = about[:, 1], counts[:, :4]
        finite = about[:, 2] - counts[:, :3].sum(1)
        numbers = np.empty((len(about), 4))
        numbers[:, 0], numbers[:, 1] = low, high
        numbers[:, 2] = sums[:, 0] / finite
        numbers[:, 3] = np.sqrt(sums[:, 2])
        if sums[:, (1, 3, 4)].any():
            _add_far(numbers, sums, finite)
        if finite.min() < 1:
            numbers[finite < 1, :3] = np.nan
    rows.set_block(about[:, 0], integers, numbers, counts[:, 4].view(np.uint64), sketch)


def _add_far(numbers: NDArray[np.float64], sums: NDArray[np.float64], finite: NDArray[np.int64]) -> None:
    """Add to mean and l2 the elements that were so large or small that they were summed apart."""
    _, total_big, _, squares_big, squares_small = sums.T
    numbers[:, 2] += np.ldexp(total_big / finite, kernels.BIG)
    big, small = np.ldexp(np.sqrt(squares_big), kernels.BIG), np.ldexp(np.sqrt(squares_small), -kernels.BIG)
    numbers[:, 3] = np.hypot(np.hypot(numbers[:, 3], big), small)
