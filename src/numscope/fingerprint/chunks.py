"""The fingerprint of one content of any size on the CPU, a few chunks at a time, at memory speed.

Each pass over four chunks is one numpy call, or one per chunk, on at most 1 MB, which stays in the cache. Small work is put
off and done for many chunks at once. BLAS sums fewer than 9000 elements at a time: it then starts no threads, and float32
sums are short enough for a proven bound of 1e-6. (Threads of our own do not help beside torch's, which keep their cores
between operators: docs/explanation/performance.md.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from numscope.fingerprint import constants
from numscope.fingerprint.constants import BUCKETS, CHUNK, ROW
from numscope.fingerprint.hashing import DIGITS, LINE, add_lines, hash_rest, join
from numscope.fingerprint.kinds import Kind, Values

_WIDTH = ROW * BUCKETS  # both a row's place and the bucket follow from the index modulo this
_RUN = 2048  # elements that BLAS sums at a time: some 32 in each lane of its kernels
_RUNS = CHUNK // _RUN
_DEEP = -(-CHUNK // _WIDTH)
_STRIPS = 8  # of a chunk, folded one by one: BLAS sees one at a time
_LATER = 16  # chunks whose sums are put off
STEP = 4 * CHUNK  # elements taken at a time
_MASK = (1 << 64) - 1

# With the largest magnitude within these bounds, squares and sums neither overflow nor lose a digit that counts.
SAFE = {np.dtype(np.float32): (2.0**-40, 2.0**50), np.dtype(np.float64): (2.0**-400, 2.0**400)}


class Sums:
    """The buffers for sums in one precision, with the sums of some chunks."""

    def __init__(self, real: np.dtype[np.generic]) -> None:
        self.signs: Values = constants.sign_table().astype(real, copy=False)
        self.ones = np.ones((_RUN, 1), real)
        self.zero = np.zeros((), real)
        self.safe = SAFE[real]
        self.values = np.empty(STEP, real)
        self.filled = np.empty(STEP, real)
        self.product = np.zeros((STEP // CHUNK, _DEEP * _WIDTH), real)
        self.strips = self.product.reshape(-1, _DEEP, _STRIPS, _WIDTH // _STRIPS).transpose(0, 2, 1, 3)
        self.total = np.empty((_LATER * _RUNS, 1, 1), real)
        self.squares = np.empty((_LATER * _RUNS, 1, 1), real)
        self.folded = np.empty((_LATER, _STRIPS, 1, _WIDTH // _STRIPS), real)
        self.deep = self.ones[None, :_DEEP, 0]

    def take(self, x: Values, first: int, at: int) -> int:
        """Sum some chunks, and store each sum from index `at` on; return the number of chunks."""
        chunks = -(-x.size // CHUNK)
        for number in range(chunks):
            part = x[number * CHUNK : (number + 1) * CHUNK]
            start = constants.chunk_start(first + number)
            np.multiply(part, self.signs[start : start + part.size], out=self.product[number, : part.size])
            if part.size < CHUNK:
                self.product[number, part.size :] = 0
        np.matmul(self.deep, self.strips[:chunks], out=self.folded[at : at + chunks])
        if x.size % _RUN:
            x = self._filled(x)
        runs, start, end = x.reshape(-1, _RUN), at * _RUNS, (at + chunks) * _RUNS
        middle = start + len(runs)
        np.matmul(runs[:, None, :], self.ones, out=self.total[start:middle])
        np.matmul(runs[:, None, :], runs[:, :, None], out=self.squares[start:middle])
        if middle < end:
            self.total[middle:end], self.squares[middle:end] = 0, 0
        return chunks

    def _filled(self, x: Values) -> Values:
        """Return a copy with zeros up to whole runs."""
        size = -(-x.size // _RUN) * _RUN
        self.filled[: x.size] = x
        self.filled[x.size : size] = 0
        return self.filled[:size]


class Scratch:
    """The buffers of one measuring thread, made once."""

    def __init__(self) -> None:
        self.words = np.empty(CHUNK, np.float64)
        self.lines = np.empty((DIGITS, LINE), np.int64)
        self._mask = np.empty(CHUNK, np.bool_)
        self.ones = np.ones(ROW)
        self._sums: dict[np.dtype[np.generic], Sums] = {}
        self._buffers: dict[tuple[str, np.dtype[np.generic]], Values] = {}

    def mask(self, size: int) -> NDArray[np.bool_]:
        """Return a buffer of `size` truth values."""
        if self._mask.size < size:
            self._mask = np.empty(size, np.bool_)
        return self._mask[:size]

    def sums(self, real: np.dtype[np.generic]) -> Sums:
        """Return the buffers for sums in this precision."""
        sums = self._sums.get(real)
        if sums is None:
            sums = self._sums[real] = Sums(real)
        return sums

    def buffer(self, name: str, real: np.dtype[np.generic], size: int) -> Values:
        """Return a buffer of `size` numbers, the same one for the same name."""
        buffer = self._buffers.get((name, real))
        if buffer is None or buffer.size < size:
            buffer = self._buffers[name, real] = np.empty(size, real)
        return buffer[:size]


class Measure:
    """The running fingerprint of one content, fed with its chunks in order; two must not use the same buffers at once."""

    def __init__(self, kind: Kind, elements: int, scratch: Scratch) -> None:
        self.kind, self.elements, self.scratch = kind, elements, scratch
        self.at = 0  # chunks taken so far
        self.nan = self.posinf = self.neginf = self.zero = self.hash = 0
        self.min, self.max = math.inf, -math.inf
        self.share = 0.0  # sum of the finite elements over `elements`: cannot overflow
        self.l2 = 0.0
        self.sketch = np.zeros(constants.SKETCH)
        self._sums = scratch.sums(kind.real)
        self._later: list[int] = []  # chunks whose sums lie in the buffers
        self._hashed = 0  # chunks
        self._rest = 0  # hash of the last, partial line
        scratch.lines.fill(0)

    def take(self, raw: NDArray[np.uint8]) -> None:
        """Take the next four chunks: 262144 elements, fewer only at the end."""
        self.add_hash(raw)
        self.add_values(raw)

    def add_hash(self, raw: NDArray[np.uint8]) -> None:
        """Take the next four chunks for the hash."""
        first = self._hashed * (CHUNK * self.kind.size // 4)
        self._hashed += STEP // CHUNK
        whole = raw.size & -(4 * LINE)
        if whole:
            add_lines(self.scratch.lines, raw[:whole].view(np.int32), first, self.scratch.words)
        if whole < raw.size:
            self._rest = hash_rest(raw[whole:], first + whole // 4)

    def hash_so_far(self) -> int:
        """Return the hash of the chunks taken so far."""
        return (join(self.scratch.lines) + self._rest) & _MASK

    def add_values(self, raw: NDArray[np.uint8]) -> None:
        """Take the next four chunks for all but the hash."""
        x = self.kind.load(raw, self._sums.values[: raw.size // self.kind.size])
        self._values(x)
        self.at += STEP // CHUNK

    def finish(self) -> None:
        """End the content: join the sums that were put off."""
        if self._later:
            self._settle(0)
        self.hash = self.hash_so_far()

    def mean(self) -> float:
        finite = self.elements - self.nan - self.posinf - self.neginf
        return self.share * (self.elements / finite) if finite else math.nan

    def _values(self, x: Values) -> None:
        low, high = float(np.minimum.reduce(x)), float(np.maximum.reduce(x))
        if not (low - low == 0.0 == high - high):  # NaN in any place makes both of them NaN
            x, low, high = self._leave_out(x)
            if low > high:
                return
        self.min, self.max = min(self.min, low), max(self.max, high)
        sums = self._sums
        if low <= 0.0 <= high:
            mask = np.not_equal(x, sums.zero, out=self.scratch.mask(x.size))
            self.zero += x.size - int(np.count_nonzero(mask))
        size = max(-low, high)
        least, most = sums.safe
        if least <= size <= most:
            if len(self._later) + STEP // CHUNK > _LATER:
                self._settle(0)
            count = sums.take(x, self.at, len(self._later))
            self._later.extend(range(self.at, self.at + count))
        elif size:
            if self._later:
                self._settle(0)
            exponent = math.frexp(size)[1]
            scaled = np.ldexp(x, -exponent, out=self.scratch.buffer("scaled", x.dtype, x.size))
            self._later.extend(range(self.at, self.at + sums.take(scaled, self.at, 0)))
            self._settle(exponent)

    def _leave_out(self, x: Values) -> tuple[Values, float, float]:
        """Count the non-finite elements; return the chunk with 0 for them, and min and max of the others."""
        nan, positive, negative = (int(np.count_nonzero(mask)) for mask in (x != x, x == np.inf, x == -np.inf))
        self.nan, self.posinf, self.neginf = self.nan + nan, self.posinf + positive, self.neginf + negative
        clean, low, high = leave_out(x)
        if low <= 0 <= high:
            self.zero -= nan + positive + negative  # they are about to be counted as zeros
        return clean, float(low), float(high)

    def _settle(self, exponent: int) -> None:
        """Join the sums that were put off, of elements that were divided by 2**exponent."""
        sums, chunks, count = self._sums, self._later, len(self._later)
        total = float(np.add.reduce(sums.total[: count * _RUNS], axis=None, dtype=np.float64))
        squares = float(np.add.reduce(sums.squares[: count * _RUNS], axis=None, dtype=np.float64))
        self.share += math.ldexp(total / self.elements, exponent)
        self.l2 = math.hypot(self.l2, float(np.ldexp(math.sqrt(squares), exponent)))
        flips, index = constants.chunk_flips(tuple(chunks))
        folded = sums.folded[:count].reshape(count, BUCKETS, ROW)
        np.multiply(folded, flips, out=folded)
        buckets = self.scratch.ones @ folded.reshape(count, ROW, BUCKETS).astype(np.float64)
        if exponent:
            buckets = np.ldexp(buckets, exponent)
        self.sketch += np.bincount(index, buckets.reshape(-1), constants.SKETCH)
        self._later = []


def leave_out(x: Values) -> tuple[Values, Values, Values]:
    """Return x with 0 for non-finite elements, and the least and greatest finite element along the last dimension.

    By masks on the bits: choosing element by element is ten times slower where finite and other elements alternate.
    """
    integer = np.int32 if x.dtype.itemsize == 4 else np.int64
    keep: NDArray[np.int32 | np.int64] = np.isfinite(x).astype(integer)
    np.negative(keep, out=keep)  # all bits, or none
    clean: NDArray[np.generic] = np.bitwise_and(x.view(integer), keep)
    np.invert(keep, out=keep)
    low, high = (clean | (keep & np.array(end, x.dtype).view(integer)) for end in (np.inf, -np.inf))
    return clean.view(x.dtype), low.view(x.dtype).min(-1), high.view(x.dtype).max(-1)


def raw_chunks(array: NDArray[np.generic], size: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of an array of plain dtype in row-major order, four chunks at a time, copying that much at most.

    `size` is the bytes of one real element: half of the array's, for a complex one.
    """
    step = STEP * size // array.dtype.itemsize
    if array.flags.c_contiguous:
        raw = array.reshape(-1).view(np.uint8)
        for start in range(0, raw.size, STEP * size):
            yield raw[start : start + STEP * size]
        return
    iterator = np.nditer(array, flags=["external_loop", "buffered", "zerosize_ok"], order="C", buffersize=step)
    held = np.empty(step, array.dtype)
    filled = 0
    part: NDArray[np.generic]
    for part in iterator:  # type: ignore[assignment]  # usually `step` elements each; numpy promises only their order
        while part.size:
            if filled == 0 and part.size == step:
                yield np.ascontiguousarray(part).view(np.uint8)
                break
            taken = part[: step - filled]
            held[filled : filled + taken.size] = taken
            filled, part = filled + taken.size, part[taken.size :]
            if filled == step:
                yield held.view(np.uint8)
                filled = 0
    if filled:
        yield held[:filled].view(np.uint8)
