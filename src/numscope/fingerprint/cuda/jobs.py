"""The table of a launch that measures many small contents: the job of each of its programs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

JOB = 6  # numbers of a program's job in `measure_many`


class Small(NamedTuple):
    """A small content, one of many that one launch measures."""

    row: int
    elements: int
    real: int  # elements, complex ones counted twice
    address: int
    programs: int  # the number that share it


def table_of(contents: Sequence[Small], programs: int, line: int, record: int) -> NDArray[np.int64]:
    """Return the jobs of this many programs; `line` and `record` are the first free ones.

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
