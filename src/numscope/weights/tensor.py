"""A tensor of a set of weights: its name, type and shape, and its elements, read some rows at a time.

A tensor is read as a matrix: its last axis is a row, all others are numbered through. What has one axis is one row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numscope.core.dtypes import AnyArray
from numscope.core.errors import RunError

BLOCK = 1 << 22  # bytes read at once: they stay in the cache while they are measured
_OUTSIDE = re.compile(r"(^|[/\\])\.\.([/\\]|$)|^/")

Read = Callable[[int, int], AnyArray]  # rows start to stop -> (stop - start, width)


@dataclass(frozen=True)
class Encoding:
    """The way in which numbers are stored in fewer bits: its name, and the relative error of what it stores."""

    name: str  # "Q4_K", "float8_e4m3fn in blocks of 128 x 128"
    tolerance: float  # of a row's relative L2 error, where its largest element is √12 times its root mean square


def grid_tolerance(bits: int) -> float:
    """Return the tolerance of an even grid of so many bits.

    Between 0 and the largest number m lie 2^(b-1) - 1 steps; an error is up to half a step, a step by √12 in the mean
    square: m / (2^(b-1) - 1) / √12, which for m = √12 root mean squares is 1 / (2^(b-1) - 1).
    """
    return 1.0 / ((1 << (bits - 1)) - 1)


@dataclass(frozen=True)
class Lines:
    """The fingerprints of the rows, or of the columns, of a tensor."""

    width: int
    hash: NDArray[np.uint64]
    sums: NDArray[np.float32]  # (lines, sums)
    norm: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.hash)


@dataclass(frozen=True)
class Summary:
    """The fingerprint of a whole tensor, and where it was taken those of its rows and columns."""

    hash: int
    min: float
    max: float
    mean: float
    l2: float
    zero: int
    non_finite: int
    sketch: NDArray[np.float64] | None = None
    rows: Lines | None = None
    columns: Lines | None = None


@dataclass(frozen=True, eq=False)
class Tensor:
    """A logical tensor; `stored` names all that it is made of, such as codes and their scales."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Read | None = None  # None where only its summary is there
    encoding: Encoding | None = None
    stored: tuple[str, ...] = ()
    summary: Summary | None = None
    storage: object = None  # what says that two names are of one tensor

    @property
    def width(self) -> int:
        """The elements of a row."""
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        """The number of rows."""
        return math.prod(self.shape[:-1]) if self.shape else 1

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which its side stores it."""
        return self.stored or (self.name,)

    @property
    def is_vector(self) -> bool:
        """Whether it has one row: a norm, a bias, a scalar."""
        return len(self.shape) < 2

    def elements(self, start: int = 0, stop: int | None = None) -> AnyArray:
        """Return some rows."""
        if self.read is None:
            raise RunError(f"{self.name}: its elements are not there, only their fingerprint")
        return self.read(start, self.rows if stop is None else stop)

    def rows_at_once(self) -> int:
        """Return how many rows fit into a block."""
        return max(1, BLOCK // max(1, self.width * np.dtype(np.float32).itemsize))

    def blocks(self, rows: int | None = None) -> Iterator[tuple[int, AnyArray]]:
        """Yield the number of a row, and that row and those behind it."""
        step = rows or self.rows_at_once()
        for start in range(0, self.rows, step):
            yield start, self.elements(start, min(start + step, self.rows))


def of_array(name: str, array: AnyArray, encoding: Encoding | None = None) -> Tensor:
    """Return an array in memory as a tensor."""
    matrix = array.reshape(-1, array.shape[-1]) if array.ndim and array.size else array.reshape(-1, max(1, array.size))
    return Tensor(name, array.dtype.name, tuple(array.shape), lambda start, stop: matrix[start:stop], encoding)


def check_name(name: str, where: object) -> str:
    """Return a name after making sure that, taken as a path, it leads nowhere else."""
    if _OUTSIDE.search(name):
        raise RunError(
            f"{where} names {name!r}, which leads out of its folder: read only files of people that you trust"
        )
    return name


def unique(tensors: Iterable[Tensor], where: object) -> list[Tensor]:
    """Return tensors in order after making sure that each has a name of its own, which leads nowhere."""
    found: dict[str, Tensor] = {}
    for tensor in tensors:
        if check_name(tensor.name, where) in found:
            raise RunError(f"{where} has two tensors {tensor.name}: name one of its files")
        found[tensor.name] = tensor
    return list(found.values())
