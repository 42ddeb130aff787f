"""The fingerprint of one content of any size on the CPU, chunk by chunk, at memory speed.

Each pass over a chunk is one numpy call on at most 256 KB, which stays in the cache. BLAS sees less than 9000 elements
at a time: it then starts no threads, and float32 sums are short enough to be right to 1e-6 by bound, not by luck.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numscope.fingerprint import constants
from numscope.fingerprint.constants import BUCKETS, CHUNK, ROW, SPAN
from numscope.fingerprint.kinds import Kind, Values

_WIDTH = ROW * BUCKETS  # both a row's place and the bucket follow from the index modulo this
_RUN = 2048  # elements that BLAS sums at a time: some 32 in each lane of its kernels
_DEEP = -(-CHUNK // _WIDTH)
_MASK = (1 << 64) - 1

# Where the largest magnitude lies in here, squares and sums neither overflow nor lose anything that counts.
SAFE = {np.dtype(np.float32): (2.0**-40, 2.0**50), np.dtype(np.float64): (2.0**-400, 2.0**400)}


class Scratch:
    """The buffers of one measuring thread, made once."""

    def __init__(self) -> None:
        self.words = np.empty(SPAN, np.int64)
        self.mask = np.empty(CHUNK, np.bool_)
        self.values: dict[np.dtype[Any], Values] = {}
        self.clean: dict[np.dtype[Any], Values] = {}
        self.product: dict[np.dtype[Any], Values] = {}
        self.signs: dict[np.dtype[Any], Values] = {}
        self.ones: dict[np.dtype[Any], Values] = {}
        for real in (np.dtype(np.float32), np.dtype(np.float64)):
            self.values[real] = np.empty(CHUNK, real)
            self.clean[real] = np.empty(CHUNK, real)
            self.product[real] = np.empty(_DEEP * _WIDTH, real)
            self.signs[real] = constants.sign_table().astype(real, copy=False)
            self.ones[real] = np.ones(2048, real)

    def wide(self, real: np.dtype[Any], size: int) -> Values:
        """Return a buffer of `size` numbers; a block of short rows, filled up to whole buckets, may need a longer one."""
        if self.product[real].size < size:
            self.product[real] = np.empty(size, real)
        return self.product[real][:size]


class Measure:
    """The running fingerprint of one content, fed with its chunks in order."""

    def __init__(self, kind: Kind, elements: int, scratch: Scratch) -> None:
        self.kind, self.elements, self.scratch = kind, elements, scratch
        self.at = 0  # chunks taken so far
        self.nan = self.posinf = self.neginf = self.zero = self.hash = 0
        self.min, self.max = math.inf, -math.inf
        self.share = 0.0  # sum of the finite elements over `elements`: cannot overflow
        self.l2 = 0.0
        self.folded = np.zeros(_WIDTH)  # signed sums by index modulo 64 * 61

    def take(self, raw: NDArray[np.uint8]) -> None:
        """Take the next chunk: 65536 elements, fewer only in the last."""
        kind, scratch = self.kind, self.scratch
        self._hash(raw, self.at * (CHUNK * kind.size // 4))
        count = raw.size // kind.size
        with np.errstate(all="ignore"):
            self._values(kind.load(raw, scratch.values[kind.real][:count]))
        self.at += 1

    def sketch(self) -> NDArray[np.float64]:
        result = np.zeros(constants.SKETCH)
        with np.errstate(all="ignore"):  # float64 elements near the largest
            result[:BUCKETS] = self.folded.reshape(ROW, BUCKETS).sum(0)
        return result

    def mean(self) -> float:
        finite = self.elements - self.nan - self.posinf - self.neginf
        return self.share * (self.elements / finite) if finite else math.nan

    def _hash(self, raw: NDArray[np.uint8], first: int) -> None:
        tail = raw.size % 4
        if tail:
            raw = np.concatenate([raw, np.zeros(4 - tail, np.uint8)])
        self.hash = (self.hash + hash_words(raw.view(np.int32), first, self.scratch.words)) & _MASK

    def _values(self, x: Values) -> None:
        low, high = float(x.min()), float(x.max())
        if not math.isfinite(low) or not math.isfinite(high):  # NaN in any place makes both of them NaN
            x, low, high = self._leave_out(x)
            if low > high:
                return
        self.min, self.max = min(self.min, low), max(self.max, high)
        mask = np.not_equal(x, 0, out=self.scratch.mask[: x.size])
        self.zero += x.size - int(np.count_nonzero(mask))
        size = max(-low, high)
        if size == 0:
            return
        exponent = 0
        least, most = SAFE[x.dtype]
        if not least <= size <= most:
            exponent = math.frexp(size)[1]
            x = np.ldexp(x, -exponent, out=self.scratch.clean[x.dtype][: x.size])
        self.share += math.ldexp(self._sum(x) / self.elements, exponent)
        self.l2 = math.hypot(self.l2, float(np.ldexp(math.sqrt(self._squares(x)), exponent)))
        folded = self._fold(x)
        if exponent:
            folded = np.ldexp(folded, exponent)
        start = self.at * CHUNK % _WIDTH
        self.folded[start:] += folded[: _WIDTH - start]
        if start:
            self.folded[:start] += folded[_WIDTH - start :]

    def _leave_out(self, x: Values) -> tuple[Values, float, float]:
        """Count the non-finite elements; return the chunk with 0 for them, and min and max of the others."""
        nan, positive, negative = (int(np.count_nonzero(mask)) for mask in (x != x, x == np.inf, x == -np.inf))
        self.nan, self.posinf, self.neginf = self.nan + nan, self.posinf + positive, self.neginf + negative
        self.zero -= nan + positive + negative  # they are about to be counted as zeros
        clean, low, high = leave_out(x)
        if low > high:
            self.zero += x.size
        return clean, float(low), float(high)

    def _sum(self, x: Values) -> float:
        whole = x.size & -_RUN
        total = float(x[whole:].sum(dtype=np.float64)) if whole < x.size else 0.0
        if whole:
            part = x[:whole].reshape(-1, 1, _RUN) @ self.scratch.ones[x.dtype][:_RUN, None]
            total += float(part.sum(dtype=np.float64))
        return total

    def _squares(self, x: Values) -> float:
        whole = x.size & -_RUN
        total = float(np.dot(x[whole:], x[whole:])) if whole < x.size else 0.0
        if whole:
            part = x[:whole].reshape(-1, _RUN)
            total += float((part[:, None, :] @ part[:, :, None]).sum(dtype=np.float64))
        return total

    def _fold(self, x: Values) -> NDArray[np.float64]:
        """Return the signed sums by index in the chunk modulo 64 * 61, from which both a sign's flip and the bucket follow."""
        start, flip = constants.chunk_signs(self.at)
        deep = -(-x.size // _WIDTH)
        product = self.scratch.product[x.dtype][: deep * _WIDTH]
        np.multiply(x, self.scratch.signs[x.dtype][start : start + x.size], out=product[: x.size])
        product[x.size :].fill(0)
        parts = product.reshape(deep, 8, _WIDTH // 8).transpose(1, 0, 2)
        folded = (self.scratch.ones[x.dtype][None, :deep] @ parts).astype(np.float64).reshape(-1)
        if flip is not None:
            folded.reshape(BUCKETS, ROW)[...] *= flip
        return folded


def leave_out(x: Values) -> tuple[Values, Any, Any]:
    """Return x with 0 for what is not finite, and the least and greatest finite element along the last dimension.

    By masks on the bits: choosing element by element is ten times slower where finite and other elements alternate.
    """
    integer = np.int32 if x.dtype.itemsize == 4 else np.int64
    keep: NDArray[Any] = np.isfinite(x).astype(integer)
    np.negative(keep, out=keep)  # all bits, or none
    clean: NDArray[Any] = np.bitwise_and(x.view(integer), keep)
    np.invert(keep, out=keep)
    bits = [clean | (keep & np.array(end, x.dtype).view(integer)) for end in (np.inf, -np.inf)]
    return clean.view(x.dtype), bits[0].view(x.dtype).min(-1), bits[1].view(x.dtype).max(-1)


def hash_words(words: NDArray[np.int32], first: int, buffer: NDArray[np.int64]) -> int:
    """Return the hash of these words, of which the first is the content's word number `first`, a multiple of SPAN."""
    total = 0
    table = constants.factors()
    for start in range(0, words.size, SPAN):
        piece = words[start : start + SPAN]
        product = buffer[: piece.size]
        np.copyto(product, piece)
        np.multiply(product, table[: piece.size], out=product)
        total += int(np.add.reduce(product)) * constants.span_factor((first + start) // SPAN)
    return total & _MASK


def raw_chunks(array: NDArray[Any], size: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of an array of plain dtype in row-major order, a chunk at a time, copying one chunk at most.

    `size` is the bytes of one real element: half of the array's, for a complex one.
    """
    step = CHUNK * size // array.dtype.itemsize
    if array.flags.c_contiguous:
        raw = array.reshape(-1).view(np.uint8)
        for start in range(0, raw.size, CHUNK * size):
            yield raw[start : start + CHUNK * size]
        return
    iterator = np.nditer(array, flags=["external_loop", "buffered", "zerosize_ok"], order="C", buffersize=step)
    held = np.empty(step, array.dtype)
    filled = 0
    part: NDArray[Any]
    for part in iterator:  # type: ignore[assignment]  # usually `step` elements each, but numpy promises no more than that they come in order
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


def measure(array: NDArray[Any], kind: Kind, scratch: Scratch) -> Measure:
    """Return the finished measure of an array whose dtype is plain and holds elements of this kind."""
    result = Measure(kind, array.size * (array.dtype.itemsize // kind.size), scratch)
    for raw in raw_chunks(array, kind.size):
        result.take(raw)
    return result
