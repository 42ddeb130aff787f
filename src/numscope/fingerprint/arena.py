"""Small contents on the CPU: copied when they are added, and measured together, many in one numpy call.

A numpy call costs as much as measuring some 4 KB. So contents of at most 128 KB are copied into blocks: matrices whose rows
are contents of one dtype and about one size, padded with zeros to a few fixed widths. The zeros add nothing to hash, sums
and sketch; counts of zeros, min and max are corrected for them.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from numscope.fingerprint.chunks import Measure, Scratch, leave_out
from numscope.fingerprint.columns import Fingerprints
from numscope.fingerprint.constants import BUCKETS, CHUNK, SKETCH
from numscope.fingerprint.hashing import hash_rows
from numscope.fingerprint.kinds import Kind, Values
from numscope.fingerprint.rows import Rows

LARGEST = 32768  # elements of a content that is put into a block
LARGEST_BYTES = 131072  # and its bytes
_BLOCK = 4 * CHUNK  # elements of a block
_WIDTHS = [256, 1024, 2048, 4096, 8192, 12288, 16384, 24576, 32768]  # few, as each has its block, and its numpy calls
_RUN = 64  # rows of buckets summed in float32 at a time
_NONE = np.zeros((3, 1), np.int64)


class Block:
    """A matrix of contents: one per row, all of one kind."""

    def __init__(self, kind: Kind, width: int) -> None:
        self.kind, self.width = kind, width
        self.stride = width * kind.size
        self.capacity = _BLOCK // width
        self.raw = np.zeros((self.capacity, self.stride), np.uint8)
        self.address = int(self.raw.ctypes.data)
        self.used = 0
        self.stale = 0  # rows up to here may hold bytes of earlier contents
        self.rows: list[int] = []
        self.counts: list[int] = []  # real elements of each
        self.elements: list[int] = []  # the tensors' own


def width_of(count: int) -> int:
    """Return the least width that holds this many elements."""
    return _WIDTHS[bisect_left(_WIDTHS, count)]


class Arena:
    """The blocks of one batch."""

    def __init__(self, scratch: Scratch, rows: Rows) -> None:
        self.scratch, self.rows = scratch, rows
        self.blocks: dict[tuple[str, int], Block] = {}

    def block(self, kind: Kind, count: int) -> Block | None:
        """Return the block for contents of `count` elements, or None where they are not small, or empty."""
        if not 0 < count <= LARGEST or count * kind.size > LARGEST_BYTES or not kind.blank:
            return None
        width = width_of(count)
        key = kind.name, width
        if key not in self.blocks:
            self.blocks[key] = Block(kind, width)
        return self.blocks[key]

    def take(self, block: Block, row: int, count: int, elements: int) -> int:
        """Return the index in the block for a content, which the caller copies there before it does anything else."""
        index = block.used
        if index == block.capacity:
            self.measure(block)
            index = 0
        if index < block.stale and count < block.width:
            block.raw[index : block.stale].fill(0)
            block.stale = 0
        block.used = index + 1
        block.rows.append(row)
        block.counts.append(count)
        block.elements.append(elements)
        return index

    def finish(self) -> None:
        """Measure the contents of all blocks."""
        for block in self.blocks.values():
            if block.used:
                self.measure(block)

    def measure(self, block: Block) -> None:
        """Measure the contents of one block and empty it."""
        used, counts = block.used, np.array(block.counts)
        with np.errstate(all="ignore"):
            columns, odd = self._columns(block, counts)
        self.rows.set_many(np.array(block.rows), columns)
        for index in odd:  # magnitudes that need scaling: too rare to do many at a time
            raw = block.raw[index, : block.counts[index] * block.kind.size]
            result = Measure(block.kind, block.counts[index], self.scratch)
            with np.errstate(all="ignore"):
                result.take(raw)
                result.finish()
            self.rows.set(block.rows[index], block.elements[index], result)
        block.stale = max(block.stale, used)
        block.used = 0
        block.rows, block.counts, block.elements = [], [], []

    def _columns(self, block: Block, counts: NDArray[np.int64]) -> tuple[Fingerprints, list[int]]:
        kind, used = block.kind, block.used
        raw = block.raw[:used]
        x = kind.load(raw, self.scratch.buffer("values", kind.real, used * block.width).reshape(used, -1))
        low = np.minimum.reduce(x, axis=1).astype(np.float64)
        high = np.maximum.reduce(x, axis=1).astype(np.float64)
        bad = _NONE.repeat(used, axis=1)
        every, finite = x, np.isfinite(high - low)
        some: NDArray[np.bool_] | None = None  # the contents with finite elements, where not all have some
        if not finite.all():
            x, some = self._leave_out(x, np.flatnonzero(~finite), counts, low, high, bad)
        padding = block.width - counts
        zero = self._zeros(x) - padding
        if padding.any():
            self._without_padding(every, counts, low, high)
        size = np.maximum(-low, high)
        least, most = self.scratch.sums(x.dtype).safe
        nan, posinf, neginf = bad
        odd = np.flatnonzero((size < least) | (size > most))
        total, squares = self._sums(x)
        if some is None:
            mean = total / counts
        else:
            out = bad.sum(0)
            zero -= out
            low[~some], high[~some] = np.nan, np.nan
            mean = np.where(some, total / (counts - out), np.nan)
        columns = Fingerprints(
            elements=np.array(block.elements),
            nan=nan,
            posinf=posinf,
            neginf=neginf,
            zero=zero,
            min=low,
            max=high,
            mean=mean,
            l2=np.sqrt(squares),
            hash=hash_rows(raw.view(np.int32), self.scratch.words),
            sketch=self._sketches(x),
        )
        return columns, [index for index in odd.tolist() if size[index] > 0]

    def _leave_out(
        self,
        x: Values,
        places: NDArray[np.int64],
        counts: NDArray[np.int64],
        low: NDArray[np.float64],
        high: NDArray[np.float64],
        bad: NDArray[np.int64],
    ) -> tuple[Values, NDArray[np.bool_]]:
        """Count the non-finite elements of these contents; return the block with 0 for them, and the rows with finite ones."""
        clean = self.scratch.buffer("clean", x.dtype, x.size).reshape(x.shape)
        np.copyto(clean, x)
        many = max(1, CHUNK // 2 // x.shape[1])  # at a time: temporaries stay in the cache
        for start in range(0, len(places), many):
            some = places[start : start + many]
            part = x[some]
            for at, mask in enumerate((part != part, part == np.inf, part == -np.inf)):
                if np.count_nonzero(mask):
                    bad[at, some] = _count(mask)
            clean[some], low[some], high[some] = leave_out(part)
        any_finite = bad.sum(0) < counts
        low[~any_finite], high[~any_finite] = 1.0, 1.0  # any number that needs no care; the caller replaces it
        return clean, any_finite

    def _zeros(self, x: Values) -> NDArray[np.int64]:
        mask = np.equal(x, self.scratch.sums(x.dtype).zero, out=self.scratch.mask(x.size).reshape(x.shape))
        return _count(mask)

    @staticmethod
    def _without_padding(
        x: Values, counts: NDArray[np.int64], low: NDArray[np.float64], high: NDArray[np.float64]
    ) -> None:
        """Take min and max again without the padding, where one of its zeros may be the least or greatest element."""
        unsure = (counts < x.shape[1]) & ((low == 0) | (high == 0))
        for index in np.flatnonzero(unsure):
            own = x[index, : counts[index]]
            own = own[np.isfinite(own)]
            low[index], high[index] = own.min(), own.max()

    def _sums(self, x: Values) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the sum and the sum of squares of each row, in float32 over 1024 elements at most."""
        run = _part(x.shape[1])
        part = x.reshape(-1, 1, run)
        total = part @ self.scratch.sums(x.dtype).ones[:run]
        squares = part @ part.transpose(0, 2, 1)
        shape = len(x), -1
        return (
            total.reshape(shape).sum(1, dtype=np.float64),
            squares.reshape(shape).sum(1, dtype=np.float64),
        )

    def _sketches(self, x: Values) -> NDArray[np.float64]:
        count, width = x.shape
        runs = -(-width // (BUCKETS * _RUN))
        deep = -(-width // (BUCKETS * runs))
        product = self.scratch.buffer("wide", x.dtype, count * runs * deep * BUCKETS).reshape(count, -1)
        sums = self.scratch.sums(x.dtype)
        np.multiply(x, sums.signs[:width], out=product[:, :width])
        product[:, width:] = 0
        folded = sums.ones[:deep, 0] @ product.reshape(count, runs, deep, BUCKETS)
        sketch = np.zeros((count, SKETCH))
        np.add.reduce(folded, axis=1, dtype=np.float64, out=sketch[:, :BUCKETS])
        return sketch


def _count(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many of each row are true, counted in the eight bytes of a word."""
    words = mask.view(np.uint64).reshape(len(mask), -1, _part(mask.shape[1]) // 8)
    bytewise: NDArray[np.uint64] = np.add.reduce(words, axis=2)  # at most 128 in each byte
    result: NDArray[np.int64] = np.add.reduce(bytewise.view(np.uint8), axis=1, dtype=np.int64)
    return result


def _part(width: int) -> int:
    """Return how many elements of a row are summed at a time: 1024 at most."""
    while width > 1024:
        width //= 2
    return width


def place_of(block: Block, index: int, count: int) -> NDArray[np.generic]:
    """Return a row of a block as an array of its kind's plain dtype, for numpy to copy into."""
    view: NDArray[np.generic] = block.raw[index, : count * block.kind.size].view(block.kind.storage)
    return view
