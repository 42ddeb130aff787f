"""Samples of a call: which part of its output is computed again, another one in each step, the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from numscope.capture.torch.verify.lens import Box, Range

EXACT = 2048  # elements: an output of no more is computed whole
_LATTICE = 512  # elements, spread over the whole output
_TURNS = 32  # steps in which the blocks have been everywhere
_ROWS = 8
_MOST = 1 << 22  # elements that an examination computes


@dataclass
class Sampling:
    """Chooses parts of an output; `full`: all of it, for the examination of a call that fails."""

    step: int = 0
    place: int = 0  # of the call in its step
    full: bool = False
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.Generator(np.random.SFC64([self.step, self.place, 20261119]))

    def boxes(self, shape: Sequence[int]) -> list[Box]:
        """Return the parts of an output whose elements are each computed for themselves."""
        total = math.prod(shape)
        if total <= EXACT or (self.full and total <= _MOST):
            return [tuple(Range(0, 1, size) for size in shape)]
        return [self.lattice(shape, _LATTICE), self._block(shape, total)]

    def lattice(self, shape: Sequence[int], budget: int) -> Box:
        """Return a lattice over all of an output; half of the time its last place is in it, where kernels forget one."""
        counts: dict[int, int] = {}
        left, remaining = budget, len(shape)
        for place in sorted(range(len(shape)), key=shape.__getitem__):
            counts[place] = max(1, min(shape[place], round(left ** (1 / remaining))))
            left, remaining = max(left // counts[place], 1), remaining - 1
        return tuple(self.range(size, counts[place]) for place, size in enumerate(shape))

    def range(self, size: int, count: int) -> Range:
        """Return a number of places of a dimension, equally far apart."""
        count = min(size, count)
        if count == size:
            return Range(0, 1, size)
        widest = (size - 1) // max(count - 1, 1) if count > 1 else 1
        step = int(self.random.integers(max(1, widest // 2 + 1), widest + 1)) if widest > 1 else 1
        room = size - 1 - (count - 1) * step
        return Range(room if self.random.random() < 0.5 else int(self.random.integers(room + 1)), step, count)

    def rows(self, size: int, count: int = _ROWS) -> Range:
        """Return some of the rows of an output that are each computed whole."""
        return Range(0, 1, size) if self.full or size <= count else self.range(size, count)

    def rows_of(self, size: int, length: int) -> Range:
        """Return rows of this length: all where they are few, and as many in turn as are all in some steps."""
        if self.full or size * length <= EXACT:
            return Range(0, 1, size)
        return self.rows(size, max(_ROWS, min(size // _TURNS, (1 << 20) // max(length, 1))))

    def _block(self, shape: Sequence[int], total: int) -> Box:
        """Return a block of neighbours: in some steps the blocks have been everywhere."""
        size = max(total // _TURNS, 1)
        inner, dim = total, 0
        while dim < len(shape) and (inner := inner // shape[dim]) > size:
            dim += 1
        count = min(max(size // inner, 1), shape[dim])
        parts = -(-shape[dim] // count)
        turn = (self.step + self.place * 7) % (parts * math.prod(shape[:dim]))
        outer, turn = divmod(turn, parts)
        box: list[Range] = []
        for length in reversed(shape[:dim]):
            outer, at = divmod(outer, length)
            box.insert(0, Range(at, 1, 1))
        start = min(turn * count, shape[dim] - count)
        return (*box, Range(start, 1, count), *(Range(0, 1, length) for length in shape[dim + 1 :]))
