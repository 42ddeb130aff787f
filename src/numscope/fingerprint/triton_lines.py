"""The lines that the Triton kernels leave, one per launch and content: joined on the host into fingerprints."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from numscope.fingerprint import triton_kernels as kernels
from numscope.fingerprint.columns import Fingerprints
from numscope.fingerprint.constants import SKETCH
from numscope.fingerprint.rows import Rows


def write_lines(raw: NDArray[np.int64], lines: list[tuple[int, int, int]], rows: Rows) -> None:
    """Join the lines that belong to one row, and write the rows."""
    about = np.array(lines, np.int64)
    row, first, place = np.unique(about[:, 0], return_index=True, return_inverse=True)
    floats = raw.view(np.float64)
    with np.errstate(all="ignore"):
        sums = _joined(np.add, floats[:, kernels.SUM : kernels.SQUARES_SMALL + 1], place, len(row))
        counts = _joined(np.add, raw[:, kernels.NAN : kernels.HASH + 1], place, len(row))
        sketch = _joined(np.add, floats[:, :SKETCH], place, len(row))
        low = _joined(np.minimum, floats[:, kernels.MIN], place, len(row))
        high = _joined(np.maximum, floats[:, kernels.MAX], place, len(row))
        total, total_big, squares, squares_big, squares_small = sums.T
        elements, real = about[first, 1], about[first, 2]
        finite = real - counts[:, :3].sum(1)
        some = finite > 0
        mean = total / finite + np.ldexp(total_big / finite, kernels.BIG)
        big, small = np.ldexp(np.sqrt(squares_big), kernels.BIG), np.ldexp(np.sqrt(squares_small), -kernels.BIG)
        l2 = np.hypot(np.hypot(np.sqrt(squares), big), small)
    rows.set_many(
        row,
        Fingerprints(
            elements=elements,
            nan=counts[:, 0],
            posinf=counts[:, 1],
            neginf=counts[:, 2],
            zero=counts[:, 3],
            min=np.where(some, low, np.nan),
            max=np.where(some, high, np.nan),
            mean=np.where(some, mean, np.nan),
            l2=l2,
            hash=np.ascontiguousarray(counts[:, 4]).view(np.uint64),
            sketch=sketch,
        ),
    )


def _joined(join: np.ufunc, part: NDArray[Any], place: NDArray[np.intp], count: int) -> NDArray[Any]:
    if len(part) == count and (place[1:] > place[:-1]).all():
        return part
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(count))
    result: NDArray[Any] = join.reduceat(part[order], starts, axis=0)
    return result
