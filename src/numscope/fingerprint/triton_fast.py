"""The fast loop of the Triton kernels: float32, bfloat16 and float16 that lie one after the other.

A tile is a block of the hash, 1024 words, seen as 32 lines of 8 groups of 4: a thread loads whole groups, and what need
not be kept per place (smallest, largest, sums, zeros) it keeps per group. All that differs from tile to tile comes from
one line of a table, `facts`. What counts here is the number of instructions per element: `triton.compile` for a target
without a device, and nvdisasm, tell it.
"""

# mypy: ignore-errors
# (the kernels are written in Triton's own language, which has no types that mypy knows)
from __future__ import annotations

import triton
import triton.language as tl

# what a line of `facts` holds: the tile's factor of the hash as above * 2**32 + below, both signed; where its rows of
# signs begin; the flips of its two halves of a row (of even and of odd places, where a word holds two elements)
FACT = 8  # numbers in a line, of 32 bits
BELOW, ABOVE, ROWS, FLIPS = range(4)

_FACT = tl.constexpr(FACT)
_ABOVE = tl.constexpr(ABOVE)
_ROWS = tl.constexpr(ROWS)
_FLIPS = tl.constexpr(FLIPS)
_SIGN = tl.constexpr(-2147483648)
_INF = tl.constexpr(float("inf"))


@triton.jit
def places():
    """Return the places of a tile's words, [32, 8, 4]."""
    line, group, four = tl.arange(0, 32), tl.arange(0, 8), tl.arange(0, 4)
    return line[:, None, None] * 32 + group[None, :, None] * 4 + four[None, None, :]


@triton.jit
def _add_elements(x, signs, good, low, high, total, squares, zeros, signed, MASKED: tl.constexpr):
    """Add the elements x[32, 8, 4]; bit k of signs[32] is the sign of place k of a line."""
    shift = 31 - (tl.arange(0, 8)[None, :, None] * 4 + tl.arange(0, 4)[None, None, :])
    flipped = ((signs[:, None, None] << shift) & _SIGN) ^ x.to(tl.int32, bitcast=True)
    signed += flipped.to(tl.float32, bitcast=True)
    zero, small, large = x == 0, x, x
    if MASKED:
        zero, small, large = zero & good, tl.where(good, x, _INF), tl.where(good, x, -_INF)
    low = tl.minimum(low, tl.min(small, 2))
    high = tl.maximum(high, tl.max(large, 2))
    zeros += tl.sum(zero.to(tl.int32), 2)
    total += tl.sum(x, 2)
    squares += tl.sum(x * x, 2)
    return low, high, total, squares, zeros, signed


@triton.jit
def _add(
    word, facts, rows, tile, left, below, above, low, high, total, squares, zeros, signed, signed2,
    HALVES: tl.constexpr, PER: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the words of one tile to the sums; of the last tile, only `left` elements are there."""
    line = tl.arange(0, 32)
    fact = facts + tile * _FACT
    below += word.to(tl.int64) * tl.load(fact).to(tl.int64)
    above += word * tl.load(fact + _ABOVE)
    row = rows + tl.load(fact + _ROWS)
    place = places()
    if PER == 1:
        half = line & 1
        signs = tl.load(row + ((line >> 1) * 4 + half)) ^ tl.load(fact + _FLIPS + half)
        low, high, total, squares, zeros, signed = _add_elements(
            word.to(tl.float32, bitcast=True), signs, place < left,
            low, high, total, squares, zeros, signed, MASKED,
        )  # fmt: skip
    else:
        even = tl.load(row + line * 4 + 2) ^ tl.load(fact + _FLIPS)
        odd = tl.load(row + line * 4 + 3) ^ tl.load(fact + _FLIPS + 1)
        if HALVES:
            one = word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            two = (word >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        else:
            one = (word << 16).to(tl.float32, bitcast=True)
            two = (word & -65536).to(tl.float32, bitcast=True)
        low, high, total, squares, zeros, signed = _add_elements(
            one, even, place * 2 < left, low, high, total, squares, zeros, signed, MASKED
        )
        low, high, total, squares, zeros, signed2 = _add_elements(
            two, odd, place * 2 + 1 < left, low, high, total, squares, zeros, signed2, MASKED
        )
    return below, above, low, high, total, squares, zeros, signed, signed2


@triton.jit
def _words(data, tile, skip):
    return tl.load(data + tl.multiple_of(tile.to(tl.int64) * 1024 - skip, 1024) + places())


@triton.jit
def _words_of_the_last(data, tile, skip, left, PER: tl.constexpr):
    place = places()
    word = tl.load(data + (tile.to(tl.int64) * 1024 - skip) + place, mask=place * PER < left, other=0)
    if PER == 2:
        word = tl.where(place * 2 + 1 < left, word, word & 0xFFFF)
    return word


@triton.jit
def fast_sums(
    data, facts, rows, first, last, step, count, begin,
    HALVES: tl.constexpr, PER: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Return what the tiles first, first + step … below `last` come to, per place or per group.

    The hash comes as two sums per place, both still to be multiplied by the place's own factor.
    """
    below = tl.zeros((32, 8, 4), tl.int64)
    above = tl.zeros((32, 8, 4), tl.int32)
    low = tl.full((32, 8), _INF, tl.float32)
    high = tl.full((32, 8), -_INF, tl.float32)
    total = tl.zeros((32, 8), tl.float32)
    squares = tl.zeros((32, 8), tl.float32)
    zeros = tl.zeros((32, 8), tl.int32)
    signed = tl.zeros((32, 8, 4), tl.float32)
    signed2 = tl.zeros((32, 8, 4), tl.float32)
    skip = begin // PER
    tile = first
    whole = tl.minimum(last, (count // (1024 * PER)).to(tl.int32))
    for _ in range(tl.maximum(whole - tile + step - 1, 0) // (MANY * step)):
        word0 = _words(data, tile, skip)  # all loads first: they are under way together
        if MANY >= 2:
            word1 = _words(data, tile + step, skip)
        if MANY >= 4:
            word2 = _words(data, tile + 2 * step, skip)
            word3 = _words(data, tile + 3 * step, skip)
        below, above, low, high, total, squares, zeros, signed, signed2 = _add(
            word0, facts, rows, tile, 0, below, above, low, high, total, squares, zeros, signed, signed2,
            HALVES, PER, False,
        )  # fmt: skip
        if MANY >= 2:
            below, above, low, high, total, squares, zeros, signed, signed2 = _add(
                word1, facts, rows, tile + step, 0, below, above, low, high, total, squares, zeros, signed, signed2,
                HALVES, PER, False,
            )  # fmt: skip
        if MANY >= 4:
            below, above, low, high, total, squares, zeros, signed, signed2 = _add(
                word2, facts, rows, tile + 2 * step, 0, below, above, low, high, total, squares, zeros, signed, signed2,
                HALVES, PER, False,
            )  # fmt: skip
            below, above, low, high, total, squares, zeros, signed, signed2 = _add(
                word3, facts, rows, tile + 3 * step, 0, below, above, low, high, total, squares, zeros, signed, signed2,
                HALVES, PER, False,
            )  # fmt: skip
        tile += MANY * step
    for _ in range(tl.maximum(whole - tile + step - 1, 0) // step):
        below, above, low, high, total, squares, zeros, signed, signed2 = _add(
            _words(data, tile, skip), facts, rows, tile, 0,
            below, above, low, high, total, squares, zeros, signed, signed2, HALVES, PER, False,
        )  # fmt: skip
        tile += step
    if tile < last:
        left = count - tile.to(tl.int64) * (1024 * PER)
        below, above, low, high, total, squares, zeros, signed, signed2 = _add(
            _words_of_the_last(data, tile, skip, left, PER), facts, rows, tile, left,
            below, above, low, high, total, squares, zeros, signed, signed2, HALVES, PER, True,
        )  # fmt: skip
    return below, above, low, high, total, squares, zeros, signed, signed2
