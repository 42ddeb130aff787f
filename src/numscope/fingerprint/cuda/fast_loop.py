"""The fast loop of the Triton kernels: float32, bfloat16 and float16 that lie in rows of whole groups of 16 bytes.

A tile is a block of the hash, 1024 words, seen as 256 groups of 4: neighbouring threads load neighbouring groups, and what
need not be kept per place (smallest, largest, sums, zeros) they keep per group. All that differs from tile to tile comes from
one line of a table, `facts`. The loads of the next tiles are under way while a tile is worked on. What counts besides is
the number of instructions per element: `triton.compile` for a target without a device, and nvdisasm, tell it.
"""

# mypy: ignore-errors
# (the kernels are written in Triton's own language, which has no types that mypy knows)
from __future__ import annotations

import triton
import triton.language as tl

from numscope.fingerprint.cuda.elements import FLOAT16, small_value
from numscope.fingerprint.cuda.launch import gdc_wait

# A line of `facts`, in numbers of 64 bits: the tile's factor of the hash, as above * 2**32 + below, both signed;
# the flips of its two halves of a row; the first of its rows of signs.
FACT = 4
FACTOR, FLIPS, ROWS = range(3)
AHEAD = 2  # tiles on their way at any time

_FLOAT16 = tl.constexpr(FLOAT16)
_FACT = tl.constexpr(FACT)
_ROWS = tl.constexpr(ROWS)
_FLIPS = tl.constexpr(FLIPS)
_SIGN = tl.constexpr(-2147483648)
_INF = tl.constexpr(float("inf"))


@triton.jit
def places():
    """Return the places of a tile's words, [256, 4]."""
    return tl.arange(0, 256)[:, None] * 4 + tl.arange(0, 4)[None, :]


@triton.jit
def _divided(number, divisor):
    """Return the quotient by a size, given as a magic number with a shift in the upper half."""
    part = tl.umulhi(number.to(tl.uint32), divisor.to(tl.uint32)).to(tl.int32)
    return (part + number) >> (divisor >> 32).to(tl.int32)


@triton.jit
def _step(number, quotient, size):
    """Return the share of a remainder in an offset; the upper half of `size` is the stride."""
    return (number - quotient * size.to(tl.int32)) * (size >> 32).to(tl.int32)


@triton.jit
def row_offset(
    group, divisor0, divisor1, divisor2, divisor3, size0, size1, size2, size3, stride4, DIMS: tl.constexpr
):
    """Return the offset in words of a group of 4 words, in rows that are not contiguous; 2 to 5 dimensions."""
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
    data, skip, tile, good, shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8,
    DIMS: tl.constexpr, MASKED: tl.constexpr,
):
    """Load the words of a tile, where `good` says that there are any; `data` begins `skip` tiles later."""
    if DIMS > 1:
        group = tile * 256 + tl.arange(0, 256)
        at = row_offset(group, shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, DIMS)
        at = at[:, None] + tl.arange(0, 4)[None, :]
        at = tl.max_contiguous(tl.multiple_of(at, [4, 4]), [1, 4])  # the compiler does not see through a division
        words = data + at
    else:
        words = data + ((tile - skip).to(tl.int64) * 1024 + places())
    if MASKED:
        return tl.load(words, mask=good, other=0)
    else:
        return tl.load(words)


@triton.jit
def _factor(fact):
    """Load the tile's factor, as two numbers of 32 bits: of a whole one it isn't known that half is the other's sign."""
    fact = fact.to(tl.pointer_type(tl.int32), bitcast=True)
    return tl.load(fact), tl.load(fact + 1)


@triton.jit
def _signs(fact, rows, row, PER: tl.constexpr):
    """Load the signs of the 32 elements around a group, bit k for the k-th, and the flips to xor to them."""
    group = tl.arange(0, 256)
    half = (group // (8 // PER)) & 1
    rows = rows.to(tl.pointer_type(tl.int32), bitcast=True) + (group // (16 // PER) * 2 + half)
    flips = (fact + _FLIPS).to(tl.pointer_type(tl.int32), bitcast=True)
    return tl.load(rows + row * 2), tl.load(flips + half)


@triton.jit
def _row(fact):
    """Load where the tile's rows of signs begin."""
    return tl.load((fact + _ROWS).to(tl.pointer_type(tl.int32), bitcast=True))


@triton.jit
def _fetch(
    data, skip, fact, rows, tile, row, step, first,
    shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8,
    PER: tl.constexpr, DIMS: tl.constexpr, MASKED: tl.constexpr,
):
    """Begin the loads of a tile's words, factor and signs, and of the row of signs of the tile after the next."""
    word = _words(
        data, skip, tile, tile >= first, shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8,
        DIMS, MASKED,
    )
    factor, factor_above = _factor(fact)
    signs, flips = _signs(fact, rows, row, PER)
    return word, factor, factor_above, signs, flips, _row(fact + 2 * step * _FACT)


@triton.jit
def _flipped(x, signs, PACKED: tl.constexpr):
    """Return x with its sign changed where the first bit of `signs` is set."""
    bits = x.to(tl.int32, bitcast=True)
    if PACKED:  # as one instruction: the compiler would take a word's second element from the word once more
        flip: tl.constexpr = "lop3.b32 $0, $1, 0x80000000, $2, 0x6a;"
        bits = tl.inline_asm_elementwise(flip, "=r,r,r", [signs, bits], tl.int32, True, 1)
    else:
        bits = (signs & _SIGN) ^ bits
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _paired(a, b, what: tl.constexpr, HALVES: tl.constexpr):
    """Apply a packed instruction to both halves of two words at once; Triton itself never emits one."""
    kind: tl.constexpr = "f16x2" if HALVES else "bf16x2"
    return tl.inline_asm_elementwise(what + kind + " $0, $1, $2;", "=r,r,r", [a, b], tl.int32, True, 1)


@triton.jit
def _paired_zeros(a, HALVES: tl.constexpr):
    """Return 1 for each half that is zero, as a number of its own kind: 256 of them can be added exactly."""
    if HALVES:
        return _paired(a, 0, "set.eq.f16x2.", HALVES)
    else:
        return _paired(a, 0, "set.eq.bf16x2.", HALVES)


@triton.jit
def _halves(word, HALVES: tl.constexpr):
    """Return the two elements of a word."""
    if HALVES:
        one = word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        two = (word >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        one = (word << 16).to(tl.float32, bitcast=True)
        two = (word & -65536).to(tl.float32, bitcast=True)
    return one, two


@triton.jit
def _elements(word, KIND: tl.constexpr, PER: tl.constexpr):
    """Return the elements of the words [256, 4], in their order."""
    if PER == 1:
        return word.to(tl.float32, bitcast=True)
    elif PER == 2:
        one, two = _halves(word, KIND == _FLOAT16)
        return tl.reshape(tl.join(one, two), (256, 8))
    else:
        one, two = small_value(word, KIND), small_value(word >> 8, KIND)
        three, four = small_value(word >> 16, KIND), small_value(word >> 24, KIND)
        return tl.reshape(tl.join(tl.join(one, three), tl.join(two, four)), (256, 16))


@triton.jit
def _quarters(word):
    """Return the four words of each group."""
    even, odd = tl.split(tl.reshape(word, (256, 2, 2)))
    one, three = tl.split(even)
    two, four = tl.split(odd)
    return one, two, three, four


@triton.jit
def _add(
    word, factor, factor_above, signs, flips, left, below, above, low, high, total, squares, zeros, signed,
    KIND: tl.constexpr, PER: tl.constexpr, PACKED: tl.constexpr, MASKED: tl.constexpr,
):
    """Add the words of one tile to the sums; of the last tile, only `left` elements are there."""
    below += word.to(tl.int64) * factor.to(tl.int64)
    above += word * factor_above
    x = _elements(word, KIND, PER)
    group = tl.arange(0, 256)
    place = tl.arange(0, 4 * PER)[None, :]
    shift = 31 - ((group & (8 // PER - 1))[:, None] * (4 * PER) + place)
    signed += _flipped(x, (signs ^ flips)[:, None] << shift, PACKED)
    if PACKED:
        HALVES: tl.constexpr = KIND == _FLOAT16
        one, two, three, four = _quarters(word)
        low = _paired(low, _paired(one, two, "min.", HALVES), "min.", HALVES)
        low = _paired(low, _paired(three, four, "min.", HALVES), "min.", HALVES)
        high = _paired(high, _paired(one, two, "max.", HALVES), "max.", HALVES)
        high = _paired(high, _paired(three, four, "max.", HALVES), "max.", HALVES)
        here = _paired(_paired_zeros(one, HALVES), _paired_zeros(two, HALVES), "add.", HALVES)
        more = _paired(_paired_zeros(three, HALVES), _paired_zeros(four, HALVES), "add.", HALVES)
        zeros = _paired(zeros, _paired(here, more, "add.", HALVES), "add.", HALVES)
    else:
        zero, small, large = x == 0, x, x
        if MASKED:
            good = group[:, None] * (4 * PER) + place < left
            zero, small, large = zero & good, tl.where(good, x, _INF), tl.where(good, x, -_INF)
        low = tl.minimum(low, tl.min(small, 1))
        high = tl.maximum(high, tl.max(large, 1))
        zeros += tl.sum(zero.to(tl.float32), 1)
    total += tl.sum(x, 1)
    squares += tl.sum(x * x, 1)
    return below, above, low, high, total, squares, zeros, signed


@triton.jit
def fast_sums(
    data, facts, rows, first, last, step, count, begin,
    shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8,
    KIND: tl.constexpr, PER: tl.constexpr, PACKED: tl.constexpr, DIMS: tl.constexpr, EARLY: tl.constexpr,
):
    """Return the sums of the tiles first, first + step … below `last`, per place, element or group.

    They are read from the last one on: of what was just written the end is still in the cache, and whoever reads the tensor
    next finds its beginning there. The hash comes as two sums per place, both still to be multiplied by the place's own
    factor. Two tiles are on their way at any time: as soon as one is added, the loads of the next but one begin. PACKED:
    smallest, largest and zeros are found for both halves of a word at once. EARLY: the kernel before may still be writing
    when this one begins.
    """
    below = tl.zeros((256, 4), tl.int64)
    above = tl.zeros((256, 4), tl.int32)
    low = tl.full((256,), _INF, tl.float32)
    high = tl.full((256,), -_INF, tl.float32)
    zeros = tl.zeros((256,), tl.float32)
    if PACKED:
        HALVES: tl.constexpr = KIND == _FLOAT16
        low = tl.full((256,), 0x7C007C00 if HALVES else 0x7F807F80, tl.int32)
        high = tl.full((256,), -0x03FF0400 if HALVES else -0x007F0080, tl.int32)
        zeros = tl.zeros((256,), tl.int32)
    total = tl.zeros((256,), tl.float32)
    squares = tl.zeros((256,), tl.float32)
    signed = tl.zeros((256, 4 * PER), tl.float32)
    skip = (begin // (1024 * PER)).to(tl.int32)
    whole = tl.minimum(last, (count // (1024 * PER)).to(tl.int32))
    turns = tl.maximum(whole - first + step - 1, 0) // step
    back = -step
    tile = first + (turns - 1) * step
    fact = facts + tile * _FACT
    row0, row1 = _row(fact), _row(fact + back * _FACT)
    if EARLY:
        gdc_wait()
    word0, factor0, above0, signs0, flips0, row0 = _fetch(
        data, skip, fact, rows, tile, row0, back, first,
        shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, PER, DIMS, True,
    )
    word1, factor1, above1, signs1, flips1, row1 = _fetch(
        data, skip, fact + back * _FACT, rows, tile + back, row1, back, first,
        shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, PER, DIMS, True,
    )
    pairs = tl.maximum(turns - 2, 0) // 2
    for _ in range(pairs):
        tile += 2 * back
        fact += 2 * back * _FACT
        below, above, low, high, total, squares, zeros, signed = _add(
            word0, factor0, above0, signs0, flips0, 0,
            below, above, low, high, total, squares, zeros, signed, KIND, PER, PACKED, False,
        )
        word0, factor0, above0, signs0, flips0, row0 = _fetch(
            data, skip, fact, rows, tile, row0, back, first,
            shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, PER, DIMS, False,
        )
        below, above, low, high, total, squares, zeros, signed = _add(
            word1, factor1, above1, signs1, flips1, 0,
            below, above, low, high, total, squares, zeros, signed, KIND, PER, PACKED, False,
        )
        word1, factor1, above1, signs1, flips1, row1 = _fetch(
            data, skip, fact + back * _FACT, rows, tile + back, row1, back, first,
            shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, PER, DIMS, False,
        )
    rest = turns - 2 * pairs  # three at most, of which two are on their way already
    word2, factor2, above2, signs2, flips2, _ = _fetch(
        data, skip, fact + 2 * back * _FACT, rows, tile + 2 * back, row0, back, first,
        shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, PER, DIMS, True,
    )
    if rest > 0:
        below, above, low, high, total, squares, zeros, signed = _add(
            word0, factor0, above0, signs0, flips0, 0,
            below, above, low, high, total, squares, zeros, signed, KIND, PER, PACKED, False,
        )
    if rest > 1:
        below, above, low, high, total, squares, zeros, signed = _add(
            word1, factor1, above1, signs1, flips1, 0,
            below, above, low, high, total, squares, zeros, signed, KIND, PER, PACKED, False,
        )
    if rest > 2:
        below, above, low, high, total, squares, zeros, signed = _add(
            word2, factor2, above2, signs2, flips2, 0,
            below, above, low, high, total, squares, zeros, signed, KIND, PER, PACKED, False,
        )
    tile = first + turns * step
    if PACKED:
        low_one, low_two = _halves(low, HALVES)
        high_one, high_two = _halves(high, HALVES)
        zeros_one, zeros_two = _halves(zeros, HALVES)
        low, high = tl.minimum(low_one, low_two), tl.maximum(high_one, high_two)
        zeros = zeros_one + zeros_two
    if tile < last:  # the last tile, of which a part is there
        left = count - tile.to(tl.int64) * (1024 * PER)
        place = places()
        word = _words(
            data, skip, tile, place * PER < left,
            shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, DIMS, True,
        )
        if PER > 1:  # of the last word, only the elements that are there
            there = tl.maximum(left - place * PER, 0).to(tl.int32)
            word = tl.where(there < PER, word & ((1 << (there * (32 // PER))) - 1), word)
        fact = facts + tile * _FACT
        factor, factor_above = _factor(fact)
        signs, flips = _signs(fact, rows, _row(fact), PER)
        below, above, low, high, total, squares, zeros, signed = _add(
            word, factor, factor_above, signs, flips, left,
            below, above, low, high, total, squares, zeros, signed, KIND, PER, False, True,
        )
    return below, above, low, high, total, squares, zeros, signed
