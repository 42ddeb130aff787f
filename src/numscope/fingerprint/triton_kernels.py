"""The fingerprint as two Triton kernels: `measure` reads a tensor once, `reduce` joins what its programs found.

A tile is a block of the hash, 1024 words. Program p takes tiles p, p + G, p + 2G … with G programs, a multiple of 61
wherever a program takes more than one: then a place in the tile is always in the same bucket of the sketch, and every
sum is kept per place, in registers, until the end. The hash's factor of a word is `places[place] * D(tile)`, so the
loop multiplies by the tile's number only.

The loop of the usual dtypes looks for nothing that is not finite: if its sum of squares is no usual number, the program
reads its tiles a second time, carefully, in float64.
"""

# mypy: ignore-errors
# (the kernels are written in Triton's own language, which has no types that mypy knows)
from __future__ import annotations

import triton
import triton.language as tl

# kinds of elements; the first three have the fast loop
FLOAT32, BFLOAT16, FLOAT16, FLOAT64, INT8, UINT8, INT16, UINT16, INT32, UINT32, INT64, UINT64, TABLE = range(13)

RECORD = 80  # numbers of a record, as int64 bits: 61 (of 64) of the sketch, then
MIN, MAX, SUM, SUM_BIG, SQUARES, SQUARES_BIG, SQUARES_SMALL = range(64, 71)
NAN, POSINF, NEGINF, ZERO, HASH = range(71, 76)
BIG = 600  # sums "big" are of numbers above 2**400, times 2**-600; "small" below 2**-400, times 2**600

_FLOAT32 = tl.constexpr(FLOAT32)
_BFLOAT16 = tl.constexpr(BFLOAT16)
_FLOAT16 = tl.constexpr(FLOAT16)
_FLOAT64 = tl.constexpr(FLOAT64)
_UINT8 = tl.constexpr(UINT8)
_UINT16 = tl.constexpr(UINT16)
_UINT32 = tl.constexpr(UINT32)
_UINT64 = tl.constexpr(UINT64)
_TABLE = tl.constexpr(TABLE)
_RECORD = tl.constexpr(RECORD)
_SIGN = tl.constexpr(-2147483648)
_INF = tl.constexpr(float("inf"))
_UP = tl.constexpr(2.0**BIG)
_DOWN = tl.constexpr(2.0**-BIG)
_HIGH = tl.constexpr(2.0**400)
_LOW = tl.constexpr(2.0**-400)
_SAFE_HIGH = tl.constexpr(2.0**50)
_SAFE_LOW = tl.constexpr(2.0**-40)


@triton.jit
def _one_stream(x, word, good, lowest, highest, total, squares, zeros, signed, MASKED: tl.constexpr):
    """Add the elements x[32, 32]; bit k of word[32] is the sign of place k of a line."""
    shift = 31 - tl.arange(0, 32)[None, :]
    flipped = ((word[:, None] << shift) & _SIGN) ^ x.to(tl.int32, bitcast=True)
    if MASKED:
        lowest = tl.minimum(lowest, tl.where(good, x, _INF))
        highest = tl.maximum(highest, tl.where(good, x, -_INF))
        zeros += ((x == 0) & good).to(tl.int32)
    else:
        lowest = tl.minimum(lowest, x)
        highest = tl.maximum(highest, x)
        zeros += (x == 0).to(tl.int32)
    total += x
    squares += x * x
    signed += flipped.to(tl.float32, bitcast=True)
    return lowest, highest, total, squares, zeros, signed


@triton.jit
def _words(data, tile, begin, PER: tl.constexpr):
    line = tl.arange(0, 32)
    return tl.load(data + tl.multiple_of(tile * 1024 - begin // PER, 1024) + (line[:, None] * 32 + line[None, :]))


@triton.jit
def _words_of_the_last(data, tile, begin, left, PER: tl.constexpr):
    """Load a tile of which only `left` elements are there."""
    line = tl.arange(0, 32)
    place = line[:, None] * 32 + line[None, :]
    word = tl.load(data + (tile * 1024 - begin // PER) + place, mask=place * PER < left, other=0)
    if PER == 2:
        word = tl.where(place * 2 + 1 < left, word, word & 0xFFFF)
    return word


@triton.jit
def _add(
    word, blocks, spans, chunks, rows, tile, left,
    hashed, lowest, highest, total, squares, zeros, signed, signed2,
    KIND: tl.constexpr, PER: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the words of one tile to the sums."""
    line = tl.arange(0, 32)
    place = line[:, None] * 32 + line[None, :]
    hashed += word.to(tl.int64) * (tl.load(blocks + (tile & 15)) * tl.load(spans + (tile >> 4)))
    first = tile * (1024 * PER)
    chunk = chunks + (first >> 16) * 8
    start = ((first >> 6) & 1023).to(tl.int32) + tl.load(chunk)
    good = place * PER < left
    if PER == 1:
        half = line & 1
        sign = tl.load(rows + ((start + (line >> 1)) & 1023) * 4 + half)
        sign ^= tl.where(half == 1, tl.load(chunk + 2), tl.load(chunk + 1))
        lowest, highest, total, squares, zeros, signed = _one_stream(
            word.to(tl.float32, bitcast=True), sign, good, lowest, highest, total, squares, zeros, signed, MASKED
        )
    else:
        at = rows + ((start + line) & 1023) * 4
        even = tl.load(at + 2) ^ tl.load(chunk + 3)
        odd = tl.load(at + 3) ^ tl.load(chunk + 4)
        if KIND == _BFLOAT16:
            one = (word << 16).to(tl.float32, bitcast=True)
            two = (word & -65536).to(tl.float32, bitcast=True)
        else:
            one = word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            two = (word >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        lowest, highest, total, squares, zeros, signed = _one_stream(
            one, even, good, lowest, highest, total, squares, zeros, signed, MASKED
        )
        good = place * 2 + 1 < left
        lowest, highest, total, squares, zeros, signed2 = _one_stream(
            two, odd, good, lowest, highest, total, squares, zeros, signed2, MASKED
        )
    return hashed, lowest, highest, total, squares, zeros, signed, signed2


@triton.jit
def _fold(signed, scratch, first, INVERSE: tl.constexpr):
    """Return the sums by bucket of signed[32, 32], whose place p is of element first + p / INVERSE (mod 61)."""
    row = tl.arange(0, 32)
    tl.debug_barrier()
    tl.store(scratch + row[:, None] * 32 + row[None, :], signed)
    tl.debug_barrier()  # what other threads of this program stored is seen from here on
    bucket = tl.arange(0, 64)
    place = ((bucket + 61 - (first % 61).to(tl.int32)) * INVERSE) % 61
    at = place[None, :] + 61 * row[:, None]
    part = tl.load(scratch + at, mask=(at < 1024) & (bucket < 61)[None, :], other=0.0)
    return tl.sum(part, 0)


@triton.jit
def _value(bits, values, KIND: tl.constexpr):
    """Return what the bits stand for, in float64."""
    if KIND == _FLOAT32:
        result = bits.to(tl.float32, bitcast=True).to(tl.float64)
    elif KIND == _BFLOAT16:
        result = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True).to(tl.float64)
    elif KIND == _FLOAT16:
        result = bits.to(tl.float16, bitcast=True).to(tl.float32).to(tl.float64)
    elif KIND == _FLOAT64:
        result = bits.to(tl.float64, bitcast=True)
    elif KIND == _UINT8:
        result = (bits.to(tl.int32) & 0xFF).to(tl.float64)
    elif KIND == _UINT16:
        result = (bits.to(tl.int32) & 0xFFFF).to(tl.float64)
    elif KIND == _UINT32:
        result = (bits.to(tl.int64) & 0xFFFFFFFF).to(tl.float64)
    elif KIND == _UINT64:
        upper = ((bits >> 32) & 0xFFFFFFFF).to(tl.float64)
        result = upper * 4294967296.0 + (bits & 0xFFFFFFFF).to(tl.float64)
    elif KIND == _TABLE:
        result = tl.load(values + (bits.to(tl.int32) & 0xFF)).to(tl.float64)
    else:
        result = bits.to(tl.float64)
    return result


@triton.jit
def _factor(word, places, blocks, spans):
    return tl.load(places + (word & 1023)) * tl.load(blocks + ((word >> 10) & 15)) * tl.load(spans + (word >> 14))


@triton.jit
def _hash_of_elements(bits, index, places, blocks, spans, SIZE: tl.constexpr):
    """Return what each element adds to the hash: its bytes where they lie in its word, or its two words."""
    if SIZE == 8:
        result = (bits & 0xFFFFFFFF).to(tl.int32).to(tl.int64) * _factor(index * 2, places, blocks, spans)
        result += (bits >> 32) * _factor(index * 2 + 1, places, blocks, spans)
    elif SIZE == 4:
        result = bits.to(tl.int64) * _factor(index, places, blocks, spans)
    elif SIZE == 2:
        word = (bits.to(tl.int32) & 0xFFFF) << ((index & 1) * 16).to(tl.int32)
        result = word.to(tl.int64) * _factor(index >> 1, places, blocks, spans)
    else:
        word = (bits.to(tl.int32) & 0xFF) << ((index & 3) * 8).to(tl.int32)
        result = word.to(tl.int64) * _factor(index >> 2, places, blocks, spans)
    return result


@triton.jit
def _offset(index, size0, size1, size2, size3, stride0, stride1, stride2, stride3, stride4, DIMS: tl.constexpr):
    """Return where an element lies; dimension 0 is the innermost."""
    if DIMS == 1:
        result = index * stride0
    else:
        result = (index % size0) * stride0
        index = index // size0
        if DIMS == 2:
            result += index * stride1
        else:
            result += (index % size1) * stride1
            index = index // size1
            if DIMS == 3:
                result += index * stride2
            else:
                result += (index % size2) * stride2
                index = index // size2
                if DIMS == 4:
                    result += index * stride3
                else:
                    result += (index % size3) * stride3 + (index // size3) * stride4
    return result


@triton.jit(do_not_specialize=[
    "count", "begin", "row", "record", "first", "last",
    "size0", "size1", "size2", "size3", "stride0", "stride1", "stride2", "stride3", "stride4",
])  # fmt: skip
def measure(
    data, ring, table, places, blocks, spans, chunks, rows, scratch, values,
    count: tl.int64, begin: tl.int64, row: tl.int64, record: tl.int64, first: tl.int64, last: tl.int64,
    size0: tl.int64, size1: tl.int64, size2: tl.int64, size3: tl.int64,
    stride0: tl.int64, stride1: tl.int64, stride2: tl.int64, stride3: tl.int64, stride4: tl.int64,
    KIND: tl.constexpr,  # of the elements
    SIZE: tl.constexpr,  # their bytes
    PER: tl.constexpr,  # elements per word in the fast loop; 0: element by element, along the strides
    DIMS: tl.constexpr,
    MANY: tl.constexpr,  # tiles whose loads are under way at a time
):  # fmt: skip
    """Write one record per program: what it finds in tiles [first, last) of a content.

    `data` holds the elements `begin` to `count`; `begin` is where tile `first` begins, or 0.
    """
    program = tl.program_id(0).to(tl.int64)
    step = tl.num_programs(0).to(tl.int64)
    if program == 0:
        tl.store(table + row * 2, record)
        tl.store(table + row * 2 + 1, step)
    scratch += program * 1024
    tile_row = tl.arange(0, 32)
    place = tile_row[:, None] * 32 + tile_row[None, :]

    lowest, highest = tl.full((), _INF, tl.float64), tl.full((), -_INF, tl.float64)
    total = tl.zeros((), tl.float64)
    squares = tl.zeros((), tl.float64)
    zeros = tl.zeros((), tl.int64)
    hashed = tl.zeros((), tl.int64)
    bucket = tl.zeros((64,), tl.float64)
    careful = True
    if PER > 0:
        p_hash = tl.zeros((32, 32), tl.int64)
        p_low = tl.full((32, 32), _INF, tl.float32)
        p_high = tl.full((32, 32), -_INF, tl.float32)
        p_total = tl.zeros((32, 32), tl.float32)
        p_squares = tl.zeros((32, 32), tl.float32)
        p_zeros = tl.zeros((32, 32), tl.int32)
        signed = tl.zeros((32, 32), tl.float32)
        signed2 = tl.zeros((32, 32), tl.float32)
        tile = first + program
        whole = tl.minimum(last, count // (1024 * PER))
        for _ in range(tl.maximum(whole - tile + step - 1, 0) // (MANY * step)):
            word0 = _words(data, tile, begin, PER)
            if MANY >= 2:
                word1 = _words(data, tile + step, begin, PER)
            if MANY >= 4:
                word2 = _words(data, tile + 2 * step, begin, PER)
                word3 = _words(data, tile + 3 * step, begin, PER)
            p_hash, p_low, p_high, p_total, p_squares, p_zeros, signed, signed2 = _add(
                word0, blocks, spans, chunks, rows, tile, 0,
                p_hash, p_low, p_high, p_total, p_squares, p_zeros, signed, signed2, KIND, PER, False,
            )  # fmt: skip
            if MANY >= 2:
                p_hash, p_low, p_high, p_total, p_squares, p_zeros, signed, signed2 = _add(
                    word1, blocks, spans, chunks, rows, tile + step, 0,
                    p_hash, p_low, p_high, p_total, p_squares, p_zeros, signed, signed2, KIND, PER, False,
                )  # fmt: skip
            if MANY >= 4:
                p_hash, p_low, p_high, p_total, p_squares, p_zeros, signed, signed2 = _add(
                    word2, blocks, spans, chunks, rows, tile + 2 * step, 0,
                    p_hash, p_low, p_high, p_total, p_squares, p_zeros, signed, signed2, KIND, PER, False,
                )  # fmt: skip
                p_hash, p_low, p_high, p_total, p_squares, p_zeros, signed, signed2 = _add(
                    word3, blocks, spans, chunks, rows, tile + 3 * step, 0,
                    p_hash, p_low, p_high, p_total, p_squares, p_zeros, signed, signed2, KIND, PER, False,
                )  # fmt: skip
            tile += MANY * step
        for _ in range(tl.maximum(whole - tile + step - 1, 0) // step):
            p_hash, p_low, p_high, p_total, p_squares, p_zeros, signed, signed2 = _add(
                _words(data, tile, begin, PER), blocks, spans, chunks, rows, tile, 0,
                p_hash, p_low, p_high, p_total, p_squares, p_zeros, signed, signed2, KIND, PER, False,
            )  # fmt: skip
            tile += step
        if tile < last:
            left = count - tile * (1024 * PER)
            p_hash, p_low, p_high, p_total, p_squares, p_zeros, signed, signed2 = _add(
                _words_of_the_last(data, tile, begin, left, PER), blocks, spans, chunks, rows, tile, left,
                p_hash, p_low, p_high, p_total, p_squares, p_zeros, signed, signed2, KIND, PER, True,
            )  # fmt: skip
        hashed = tl.sum(tl.sum(p_hash * tl.load(places + place), 0), 0)
        squares = tl.sum(tl.sum(p_squares.to(tl.float64), 0), 0)
        total = tl.sum(tl.sum(p_total.to(tl.float64), 0), 0)
        zeros = tl.sum(tl.sum(p_zeros, 0), 0).to(tl.int64)
        lowest = tl.min(tl.min(p_low, 0), 0).to(tl.float64)
        highest = tl.max(tl.max(p_high, 0), 0).to(tl.float64)
        origin = (first + program) * (1024 * PER)
        if PER == 1:
            bucket = _fold(signed.to(tl.float64), scratch, origin, 1)
        else:  # places are every second element, and 31 is the inverse of 2
            bucket = _fold(signed.to(tl.float64), scratch, origin, 31)
            bucket += _fold(signed2.to(tl.float64), scratch, origin + 1, 31)
        size = tl.maximum(-lowest, highest)
        usual = (squares < _INF) & (size <= _SAFE_HIGH) & ((size >= _SAFE_LOW) | (size == 0.0))
        careful = usual == 0

    total_big = tl.zeros((), tl.float64)
    squares_big = tl.zeros((), tl.float64)
    squares_small = tl.zeros((), tl.float64)
    nans = tl.zeros((), tl.int64)
    positive = tl.zeros((), tl.int64)
    negative = tl.zeros((), tl.int64)
    if careful:
        bucket = tl.zeros((64,), tl.float64)
        l_low = tl.full((32,), _INF, tl.float64)  # of each line of a tile: fewer registers than one of each place
        l_high = tl.full((32,), -_INF, tl.float64)
        l_total = tl.zeros((32,), tl.float64)
        l_total_big = tl.zeros((32,), tl.float64)
        l_squares = tl.zeros((32,), tl.float64)
        l_squares_big = tl.zeros((32,), tl.float64)
        l_squares_small = tl.zeros((32,), tl.float64)
        l_nan = tl.zeros((32,), tl.int32)
        l_positive = tl.zeros((32,), tl.int32)
        l_negative = tl.zeros((32,), tl.int32)
        l_zero = tl.zeros((32,), tl.int32)
        l_hash = tl.zeros((32,), tl.int64)
        elements = data
        if PER == 2:
            elements = data.to(tl.pointer_type(tl.int16), bitcast=True)
        for part in range(PER if PER > 0 else 1):
            signed3 = tl.zeros((32, 32), tl.float64)
            tile = first + program
            for _ in range((last - tile + step - 1) // step):
                number = tile * (PER if PER > 0 else 1) + part
                index = number * 1024 + place
                there = index < count
                offset = _offset(
                    index - begin, size0, size1, size2, size3, stride0, stride1, stride2, stride3, stride4, DIMS
                )
                bits = tl.load(elements + offset, mask=there, other=0)
                if PER == 0:
                    l_hash += tl.sum(_hash_of_elements(bits, tl.where(there, index, 0), places, blocks, spans, SIZE), 1)
                x = _value(bits, values, KIND)
                magnitude = tl.abs(x)
                finite = (magnitude < _INF) & there
                l_nan += tl.sum(((x != x) & there).to(tl.int32), 1)
                l_positive += tl.sum(((x == _INF) & there).to(tl.int32), 1)
                l_negative += tl.sum(((x == -_INF) & there).to(tl.int32), 1)
                l_zero += tl.sum(((x == 0.0) & there).to(tl.int32), 1)
                l_low = tl.minimum(l_low, tl.min(tl.where(finite, x, _INF), 1))
                l_high = tl.maximum(l_high, tl.max(tl.where(finite, x, -_INF), 1))
                x = tl.where(finite, x, 0.0)
                if KIND == _FLOAT64:
                    middle = tl.where((magnitude <= _HIGH) & (magnitude >= _LOW), x, 0.0)
                    big = tl.where(magnitude > _HIGH, x, 0.0) * _DOWN
                    small = tl.where(magnitude < _LOW, x, 0.0)
                    l_total += tl.sum(middle + small, 1)
                    l_total_big += tl.sum(big, 1)
                    l_squares += tl.sum(middle * middle, 1)
                    l_squares_big += tl.sum(big * big, 1)
                    l_squares_small += tl.sum((small * _UP) * (small * _UP), 1)
                else:
                    l_total += tl.sum(x, 1)
                    l_squares += tl.sum(x * x, 1)
                chunk = chunks + ((number * 1024) >> 16) * 8
                start = (((number * 1024) >> 6) & 1023).to(tl.int32) + tl.load(chunk)
                half = tile_row & 1
                at = (start + (tile_row >> 1)) & 1023
                sign = tl.load(rows + at * 4 + half) ^ tl.load(chunk + 1 + half)
                minus = (sign[:, None] >> tile_row[None, :]) & 1
                signed3 += tl.where(minus == 1, -x, x)
                tile += step
            bucket += _fold(signed3, scratch, ((first + program) * (PER if PER > 0 else 1) + part) * 1024, 1)
        lowest = tl.min(l_low, 0)
        highest = tl.max(l_high, 0)
        total = tl.sum(l_total, 0)
        squares = tl.sum(l_squares, 0)
        total_big = tl.sum(l_total_big, 0)
        squares_big = tl.sum(l_squares_big, 0)
        squares_small = tl.sum(l_squares_small, 0)
        nans = tl.sum(l_nan, 0).to(tl.int64)
        positive = tl.sum(l_positive, 0).to(tl.int64)
        negative = tl.sum(l_negative, 0).to(tl.int64)
        zeros = tl.sum(l_zero, 0).to(tl.int64)
        if PER == 0:
            hashed = tl.sum(l_hash, 0)

    out = ring + (record + program) * _RECORD
    tl.store(out + tl.arange(0, 64), bucket.to(tl.int64, bitcast=True))
    tl.store(out + 64, lowest.to(tl.int64, bitcast=True))
    tl.store(out + 65, highest.to(tl.int64, bitcast=True))
    tl.store(out + 66, total.to(tl.int64, bitcast=True))
    tl.store(out + 67, total_big.to(tl.int64, bitcast=True))
    tl.store(out + 68, squares.to(tl.int64, bitcast=True))
    tl.store(out + 69, squares_big.to(tl.int64, bitcast=True))
    tl.store(out + 70, squares_small.to(tl.int64, bitcast=True))
    tl.store(out + 71, nans)
    tl.store(out + 72, positive)
    tl.store(out + 73, negative)
    tl.store(out + 74, zeros)
    tl.store(out + 75, hashed)


@triton.jit
def _column(ring, at, there, COLUMN: tl.constexpr):
    return tl.load(ring + at * _RECORD + COLUMN, mask=there, other=0)


@triton.jit
def reduce(ring, table, out):
    """Join the records of each program's row, in their order, into one."""
    row = tl.program_id(0).to(tl.int64)
    start = tl.load(table + row * 2)
    records = tl.load(table + row * 2 + 1)
    line = tl.arange(0, 32)
    bucket = tl.zeros((64,), tl.float64)
    lowest, highest = tl.full((), _INF, tl.float64), tl.full((), -_INF, tl.float64)
    sums = tl.zeros((8,), tl.float64)
    counts = tl.zeros((8,), tl.int64)
    eight = tl.arange(0, 8)
    for begin in range(0, records, 32):
        at = start + begin + line
        there = begin + line < records
        raw = tl.load(ring + at[:, None] * _RECORD + tl.arange(0, 64)[None, :], mask=there[:, None], other=0)
        bucket += tl.sum(raw.to(tl.float64, bitcast=True), 0)
        low = _column(ring, at, there, 64).to(tl.float64, bitcast=True)
        high = _column(ring, at, there, 65).to(tl.float64, bitcast=True)
        lowest = tl.minimum(lowest, tl.min(tl.where(there, low, _INF), 0))
        highest = tl.maximum(highest, tl.max(tl.where(there, high, -_INF), 0))
        fives = there[:, None] & (eight < 5)[None, :]
        raw = tl.load(ring + at[:, None] * _RECORD + 66 + eight[None, :], mask=fives, other=0)
        sums += tl.sum(raw.to(tl.float64, bitcast=True), 0)
        counts += tl.sum(tl.load(ring + at[:, None] * _RECORD + 71 + eight[None, :], mask=fives, other=0), 0)
    out += row * _RECORD
    tl.store(out + tl.arange(0, 64), bucket.to(tl.int64, bitcast=True))
    tl.store(out + 64, lowest.to(tl.int64, bitcast=True))
    tl.store(out + 65, highest.to(tl.int64, bitcast=True))
    tl.store(out + 66 + eight, sums.to(tl.int64, bitcast=True), mask=eight < 5)
    tl.store(out + 71 + eight, counts, mask=eight < 5)
