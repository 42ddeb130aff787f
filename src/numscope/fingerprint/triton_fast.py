"""The fast loop of the Triton kernels: float32, bfloat16 and float16 that lie in rows of whole groups of 16 bytes.

A tile is a block of the hash, 1024 words, seen as 32 lines of 8 groups of 4: a thread loads whole groups, and what need
not be kept per place (smallest, largest, sums, zeros) it keeps per group. All that differs from tile to tile comes from
one line of a table, `facts`. The loads of the next tiles are under way while a tile is worked on. What counts besides is
the number of instructions per element: `triton.compile` for a target without a device, and nvdisasm, tell it.
"""

# mypy: ignore-errors
# (the kernels are written in Triton's own language, which has no types that mypy knows)
from __future__ import annotations

import triton
import triton.language as tl

# what a line of `facts` holds, in numbers of 64 bits: the tile's factor of the hash, as above * 2**32 + below, both signed;
# where its rows of signs begin; the flips of its two halves of a row (of even and of odd places, where a word holds two)
FACT = 4
FACTOR, ROWS, FLIPS = range(3)

_FACT = tl.constexpr(FACT)
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
def _divided(number, divisor):
    """Return the quotient by a size, for which a magic number stands and above it a shift."""
    part = tl.umulhi(number.to(tl.uint32), divisor.to(tl.uint32)).to(tl.int32)
    return (part + number) >> (divisor >> 32).to(tl.int32)


@triton.jit
def _step(number, quotient, size):
    """Return what the remainder adds to an offset; above a size stands its stride."""
    return (number - quotient * size.to(tl.int32)) * (size >> 32).to(tl.int32)


@triton.jit
def row_offset(
    group, divisor0, divisor1, divisor2, divisor3, size0, size1, size2, size3, stride4, DIMS: tl.constexpr
):  # fmt: skip
    """Return where a group of 4 words begins in rows that lie apart, in words; 2 to 5 dimensions."""
    outer = _divided(group, divisor0)
    result = _step(group, outer, size0)
    inner, outer = outer, _divided(outer, divisor1)
    result += _step(inner, outer, size1)
    if DIMS > 3:
        inner, outer = outer, _divided(outer, divisor2)
        result += _step(inner, outer, size2)
        inner, outer = outer, _divided(outer, divisor3)
        result += _step(inner, outer, size3)
    return result + outer * stride4.to(tl.int32)


@triton.jit
def _words(
    data, tile, skip, good, shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, DIMS: tl.constexpr
):  # fmt: skip
    """Load the words of a tile where `good` says that there are any."""
    if DIMS > 1:
        group = tile * 256 + tl.arange(0, 32)[:, None] * 8 + tl.arange(0, 8)[None, :]
        at = row_offset(group, shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, DIMS)
        at = at[:, :, None] + tl.arange(0, 4)[None, None, :]
        at = tl.max_contiguous(tl.multiple_of(at, [4, 4, 4]), [1, 1, 4])  # the compiler does not see through a division
    else:
        at = tl.multiple_of(tile.to(tl.int64) * 1024 - skip, 1024) + places()
    return tl.load(data + at, mask=good, other=0, eviction_policy="evict_first")  # read once: the tables shall stay


@triton.jit
def _factor(facts, tile):
    """Load the tile's factor, as two numbers of 32 bits: of a whole one it isn't known that half is the other's sign."""
    fact = (facts + tile * _FACT).to(tl.pointer_type(tl.int32), bitcast=True)
    return tl.load(fact), tl.load(fact + 1)


@triton.jit
def _signs(facts, rows, tile, row, PER: tl.constexpr):
    """Load the signs of a tile, bit k of a line's is place k's, and the flips to be xored to them.

    If a word holds two elements, the signs of the odd ones stand 32 bits above those of the even, and the flips are xored
    when they are needed; if it holds one, at once: measured, each is the faster.
    """
    line = tl.arange(0, 32)
    flips = facts + (tile * _FACT + _FLIPS)
    if PER == 1:
        half = line & 1
        rows = rows.to(tl.pointer_type(tl.int32), bitcast=True)
        flips = flips.to(tl.pointer_type(tl.int32), bitcast=True)
        signs = tl.load(rows + (row * 4 + (line >> 1) * 4 + half)) ^ tl.load(flips + half)
        return signs, signs
    else:
        return tl.load(rows + (row * 2 + 1 + line * 2)), tl.load(flips)


@triton.jit
def _row(facts, tile):
    """Load where the tile's rows of signs begin."""
    return tl.load(facts + (tile * _FACT + _ROWS)).to(tl.int32)


@triton.jit
def _fetch(
    data, facts, rows, tile, row, step, whole, final, skip,
    shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8,
    PER: tl.constexpr, MANY: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Begin the loads of a tile's words, factor and signs, and of where the signs begin of the one MANY turns later."""
    word = _words(
        data, tile, skip, tile < whole, shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, DIMS
    )
    known = tl.minimum(tile, final)
    factor, factor_above = _factor(facts, known)
    signs, flips = _signs(facts, rows, known, row, PER)
    return word, factor, factor_above, signs, flips, _row(facts, tl.minimum(tile + MANY * step, final))


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
    zeros += tl.sum(zero.to(tl.float32), 2)
    total += tl.sum(x, 2)
    squares += tl.sum(x * x, 2)
    return low, high, total, squares, zeros, signed


@triton.jit
def _add(
    word, factor, factor_above, signs, flips, left, below, above, low, high, total, squares, zeros, signed, signed2,
    HALVES: tl.constexpr, PER: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the words of one tile to the sums; of the last tile, only `left` elements are there."""
    below += word.to(tl.int64) * factor.to(tl.int64)
    above += word * factor_above
    if PER == 2:
        signs ^= flips
    place = places()
    if PER == 1:
        low, high, total, squares, zeros, signed = _add_elements(
            word.to(tl.float32, bitcast=True), signs, place < left,
            low, high, total, squares, zeros, signed, MASKED,
        )  # fmt: skip
    else:
        if HALVES:
            one = word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            two = (word >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        else:
            one = (word << 16).to(tl.float32, bitcast=True)
            two = (word & -65536).to(tl.float32, bitcast=True)
        low, high, total, squares, zeros, signed = _add_elements(
            one, signs.to(tl.int32), place * 2 < left, low, high, total, squares, zeros, signed, MASKED
        )
        low, high, total, squares, zeros, signed2 = _add_elements(
            two, (signs >> 32).to(tl.int32), place * 2 + 1 < left,
            low, high, total, squares, zeros, signed2, MASKED,
        )  # fmt: skip
    return below, above, low, high, total, squares, zeros, signed, signed2


@triton.jit
def fast_sums(
    data, facts, rows, first, last, step, count, begin,
    shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8,
    HALVES: tl.constexpr, PER: tl.constexpr, MANY: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Return what the tiles first, first + step … below `last` come to, per place or per group.

    The hash comes as two sums per place, both still to be multiplied by the place's own factor. MANY tiles are on their
    way at any time: as soon as one is added, the loads of the one MANY turns later begin.
    """
    below = tl.zeros((32, 8, 4), tl.int64)
    above = tl.zeros((32, 8, 4), tl.int32)
    low = tl.full((32, 8), _INF, tl.float32)
    high = tl.full((32, 8), -_INF, tl.float32)
    total = tl.zeros((32, 8), tl.float32)
    squares = tl.zeros((32, 8), tl.float32)
    zeros = tl.zeros((32, 8), tl.float32)
    signed = tl.zeros((32, 8, 4), tl.float32)
    signed2 = tl.zeros((32, 8, 4), tl.float32)
    skip = begin // PER
    whole = tl.minimum(last, (count // (1024 * PER)).to(tl.int32))
    final = tl.maximum(last - 1, 0)  # no fact beyond it is asked for
    tile = first
    turns = tl.maximum(whole - first + step - 1, 0) // step
    word0, factor0, above0, signs0, flips0, row0 = _fetch(
        data, facts, rows, tile, _row(facts, tile), step, whole, final, skip,
        shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, PER, MANY, DIMS,
    )  # fmt: skip
    word1, factor1, above1, signs1, flips1, row1 = _fetch(
        data, facts, rows, tile + step, _row(facts, tl.minimum(tile + step, final)), step, whole, final, skip,
        shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, PER, MANY, DIMS,
    )  # fmt: skip
    if MANY == 4:
        word2, factor2, above2, signs2, flips2, row2 = _fetch(
            data, facts, rows, tile + 2 * step, _row(facts, tl.minimum(tile + 2 * step, final)), step, whole, final, skip,
            shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, PER, MANY, DIMS,
        )  # fmt: skip
        word3, factor3, above3, signs3, flips3, row3 = _fetch(
            data, facts, rows, tile + 3 * step, _row(facts, tl.minimum(tile + 3 * step, final)), step, whole, final, skip,
            shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, PER, MANY, DIMS,
        )  # fmt: skip
    for _ in range(turns // MANY):
        tile += MANY * step
        below, above, low, high, total, squares, zeros, signed, signed2 = _add(
            word0, factor0, above0, signs0, flips0, 0,
            below, above, low, high, total, squares, zeros, signed, signed2, HALVES, PER, False,
        )  # fmt: skip
        word0, factor0, above0, signs0, flips0, row0 = _fetch(
            data, facts, rows, tile, row0, step, whole, final, skip,
            shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, PER, MANY, DIMS,
        )  # fmt: skip
        below, above, low, high, total, squares, zeros, signed, signed2 = _add(
            word1, factor1, above1, signs1, flips1, 0,
            below, above, low, high, total, squares, zeros, signed, signed2, HALVES, PER, False,
        )  # fmt: skip
        word1, factor1, above1, signs1, flips1, row1 = _fetch(
            data, facts, rows, tile + step, row1, step, whole, final, skip,
            shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, PER, MANY, DIMS,
        )  # fmt: skip
        if MANY == 4:
            below, above, low, high, total, squares, zeros, signed, signed2 = _add(
                word2, factor2, above2, signs2, flips2, 0,
                below, above, low, high, total, squares, zeros, signed, signed2, HALVES, PER, False,
            )  # fmt: skip
            word2, factor2, above2, signs2, flips2, row2 = _fetch(
                data, facts, rows, tile + 2 * step, row2, step, whole, final, skip,
                shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, PER, MANY, DIMS,
            )  # fmt: skip
            below, above, low, high, total, squares, zeros, signed, signed2 = _add(
                word3, factor3, above3, signs3, flips3, 0,
                below, above, low, high, total, squares, zeros, signed, signed2, HALVES, PER, False,
            )  # fmt: skip
            word3, factor3, above3, signs3, flips3, row3 = _fetch(
                data, facts, rows, tile + 3 * step, row3, step, whole, final, skip,
                shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, PER, MANY, DIMS,
            )  # fmt: skip
    for _ in range(turns % MANY):  # what is left is on its way already
        below, above, low, high, total, squares, zeros, signed, signed2 = _add(
            word0, factor0, above0, signs0, flips0, 0,
            below, above, low, high, total, squares, zeros, signed, signed2, HALVES, PER, False,
        )  # fmt: skip
        tile += step
        word0, factor0, above0, signs0, flips0 = word1, factor1, above1, signs1, flips1
        if MANY == 4:
            word1, factor1, above1, signs1, flips1 = word2, factor2, above2, signs2, flips2
            word2, factor2, above2, signs2, flips2 = word3, factor3, above3, signs3, flips3
    if tile < last:  # the last tile, of which a part is there
        left = count - tile.to(tl.int64) * (1024 * PER)
        place = places()
        word = _words(
            data, tile, skip, place * PER < left,
            shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, DIMS,
        )  # fmt: skip
        if PER == 2:
            word = tl.where(place * 2 + 1 < left, word, word & 0xFFFF)
        factor, factor_above = _factor(facts, tile)
        signs, flips = _signs(facts, rows, tile, _row(facts, tile), PER)
        below, above, low, high, total, squares, zeros, signed, signed2 = _add(
            word, factor, factor_above, signs, flips, left,
            below, above, low, high, total, squares, zeros, signed, signed2, HALVES, PER, True,
        )  # fmt: skip
    return below, above, low, high, total, squares, zeros, signed, signed2
