"""The table by which one launch measures many small contents: what each of its programs does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

JOB = 6  # numbers that say what one program of `measure_many` does


class Small(NamedTuple):
    """One of many contents that are measured by one launch."""

    row: int
    elements: int
    real: int  # elements, complex ones counted twice
    address: int
    programs: int  # that share it


def table_of(contents: Sequence[Small], programs: int, line: int, record: int) -> NDArray[np.int64]:
    """Return what each program does, of so many in all; `line` and `record` are the first that are free.

    A line of the table: address, count, program, of how many, line, first record.
    """
    fields = len(Small._fields)
    numbers = np.fromiter(chain.from_iterable(contents), np.int64, fields * len(contents))
    _, _, count, address, share = numbers.reshape(-1, fields).T
    first = np.cumsum(share) - share  # the program with which each content begins
    each = np.empty((len(contents), JOB), np.int64)
    each[:, 0], each[:, 1], each[:, 2], each[:, 3] = address, count, -first, share
    each[:, 4] = line + np.arange(len(contents))
    each[:, 5] = record + first
    table = np.repeat(each, share, 0)
    table[:, 2] += np.arange(programs)
    return table
