"""The fingerprint as Triton kernels: `measure` reads one tensor, `measure_many` many, `reduce` joins their records.

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

from numscope.fingerprint.cuda.elements import FLOAT64, hash_of_elements, offset, value
from numscope.fingerprint.cuda.fast_loop import fast_sums, places, row_offset
from numscope.fingerprint.cuda.jobs import JOB
from numscope.fingerprint.cuda.launch import gdc_wait

RECORD = 80  # numbers of a record, as int64 bits: 61 (of 64) of the sketch, then
MIN, MAX, SUM, SUM_BIG, SQUARES, SQUARES_BIG, SQUARES_SMALL = range(64, 71)
NAN, POSINF, NEGINF, ZERO, HASH = range(71, 76)
BIG = 600  # sums "big" are of numbers above 2**400, times 2**-600; "small" below 2**-400, times 2**600

_AT_A_TIME = tl.constexpr(128)  # records: the more are asked for at once, the less often it waits for the memory
_FLOAT64 = tl.constexpr(FLOAT64)
_RECORD = tl.constexpr(RECORD)
_JOB = tl.constexpr(JOB)
_INF = tl.constexpr(float("inf"))
_UP = tl.constexpr(2.0**BIG)
_DOWN = tl.constexpr(2.0**-BIG)
_HIGH = tl.constexpr(2.0**400)
_LOW = tl.constexpr(2.0**-400)
_SAFE_HIGH = tl.constexpr(2.0**50)
_SAFE_LOW = tl.constexpr(2.0**-40)


@triton.jit
def _fold(sums, tile, PER: tl.constexpr):
    """Return the sums by bucket of a tile's sums by element, with PER elements to a word, counted from this tile."""
    bucket = tl.arange(0, 64)
    origin = ((tile % 61).to(tl.int32) * (1024 * PER % 61)) % 61
    first = (bucket + 61 - origin) % 61
    line = tl.arange(0, 32 * PER)
    at = first[None, :] + 61 * line[:, None]
    there = (at < 1024 * PER) & (bucket < 61)[None, :]
    at = tl.where(there, at, 0)
    found = tl.reshape(tl.gather(sums, tl.reshape(at, (2048 * PER,)), 0), (32 * PER, 64))
    return tl.sum(tl.where(there, found, 0.0).to(tl.float64), 0)


@triton.jit
def _both(low, high, total, squares, zeros, hashed, low2, high2, total2, squares2, zeros2, hashed2):
    return (
        tl.minimum(low, low2), tl.maximum(high, high2), total + total2, squares + squares2, zeros + zeros2,
        hashed + hashed2,
    )


@triton.jit
def _in_rows(
    index, shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, PER: tl.constexpr, DIMS: tl.constexpr
):
    """Return the offset of an element in rows that are not contiguous."""
    group = (index // (4 * PER)).to(tl.int32)
    words = row_offset(group, shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, DIMS)
    return words.to(tl.int64) * PER + index % (4 * PER)


@triton.jit
def _measure(
    data, program, step, ring, table, facts, factors, blocks, spans, chunks, rows, values,
    count, begin, row, record, first, last,
    shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8,
    KIND: tl.constexpr, SIZE: tl.constexpr, PER: tl.constexpr, DIMS: tl.constexpr, PACKED: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Write the record of one of `step` programs, for tiles [first, last) of a content.

    `data` holds the elements `begin` to `count`; `begin` is where tile `first` begins, or 0.
    """
    tile_row = tl.arange(0, 32)
    place = tile_row[:, None] * 32 + tile_row[None, :]

    lowest, highest = tl.full((), _INF, tl.float64), tl.full((), -_INF, tl.float64)
    total = tl.zeros((), tl.float64)
    squares = tl.zeros((), tl.float64)
    zeros = tl.zeros((), tl.int64)
    hashed = tl.zeros((), tl.int64)
    bucket = tl.zeros((64,), tl.float64)
    careful = True
    if PER == 0 and EARLY:
        gdc_wait()
    if PER > 0:
        below, above, p_low, p_high, p_total, p_squares, p_zeros, signed = fast_sums(
            data, facts, rows, (first + program).to(tl.int32), last.to(tl.int32), step.to(tl.int32), count, begin,
            shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8,
            KIND, PER, PACKED, DIMS, EARLY,
        )
        p_hash = tl.sum((below + (above.to(tl.int64) << 32)) * tl.load(factors + places()), 1)
        low, high, total, squares, zeros, hashed = tl.reduce(
            (
                p_low, p_high, p_total.to(tl.float64), p_squares.to(tl.float64), p_zeros, p_hash,
            ),
            0,
            _both,
        )
        lowest, highest, zeros = low.to(tl.float64), high.to(tl.float64), zeros.to(tl.int64)
        bucket = _fold(tl.reshape(signed, (1024 * PER,)), first + program, PER)
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
        rows32 = rows.to(tl.pointer_type(tl.int32), bitcast=True)
        if PER == 2:
            elements = data.to(tl.pointer_type(tl.int16), bitcast=True)
        if PER == 4:
            elements = data.to(tl.pointer_type(tl.int8), bitcast=True)
        for part in range(PER if PER > 0 else 1):
            signed3 = tl.zeros((32, 32), tl.float64)
            tile = first + program
            for _ in range((last - tile + step - 1) // step):
                number = tile * (PER if PER > 0 else 1) + part
                index = number * 1024 + place
                there = index < count
                if PER > 0 and DIMS > 1:
                    at_element = _in_rows(
                        index, shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, PER, DIMS
                    )
                else:
                    at_element = offset(
                        index - begin, shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, DIMS
                    )
                bits = tl.load(elements + at_element, mask=there, other=0)
                if PER == 0:
                    l_hash += tl.sum(hash_of_elements(bits, tl.where(there, index, 0), factors, blocks, spans, SIZE), 1)
                x = value(bits, values, KIND)
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
                sign = tl.load(rows32 + at * 2 + half) ^ tl.load(chunk + 1 + half)
                minus = (sign[:, None] >> tile_row[None, :]) & 1
                signed3 += tl.where(minus == 1, -x, x)
                tile += step
            bucket += _fold(tl.reshape(signed3, (1024,)), (first + program) * (PER if PER > 0 else 1) + part, 1)
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

    if program == 0:  # nothing is written before the kernels before have ended
        tl.store(table + row * 2, record)
        tl.store(table + row * 2 + 1, step)
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


@triton.jit(do_not_specialize=[
    "count", "begin", "row", "record", "first", "last",
    "shape0", "shape1", "shape2", "shape3", "shape4", "shape5", "shape6", "shape7", "shape8",
])
def measure(
    data, ring, table, facts, factors, blocks, spans, chunks, rows, values,
    count: tl.int64, begin: tl.int64, row: tl.int64, record: tl.int64, first: tl.int64, last: tl.int64,
    shape0: tl.int64, shape1: tl.int64, shape2: tl.int64, shape3: tl.int64, shape4: tl.int64,
    shape5: tl.int64, shape6: tl.int64, shape7: tl.int64, shape8: tl.int64,  # see `offset`; `row_offset` if PER > 0
    KIND: tl.constexpr,  # of the elements
    SIZE: tl.constexpr,  # their bytes
    PER: tl.constexpr,  # elements per word in the fast loop; 0: element by element, along the strides
    DIMS: tl.constexpr,
    PACKED: tl.constexpr,  # smallest and largest of two elements at once
    EARLY: tl.constexpr,  # launched before the kernel before has ended
):
    """Measure one content: all programs of the launch share its tiles."""
    program = tl.program_id(0).to(tl.int64)
    _measure(
        data, program, tl.num_programs(0).to(tl.int64),
        ring, table, facts, factors, blocks, spans, chunks, rows, values, count, begin, row, record, first, last,
        shape0, shape1, shape2, shape3, shape4, shape5, shape6, shape7, shape8, KIND, SIZE, PER, DIMS, PACKED, EARLY,
    )


@triton.jit
def measure_many(
    jobs, ring, table, facts, factors, blocks, spans, chunks, rows, values,
    KIND: tl.constexpr, SIZE: tl.constexpr, PER: tl.constexpr, PACKED: tl.constexpr,
):
    """Measure many contents, each shared by the programs whose jobs name it: address, count, program, of how many, …"""
    place = tl.program_id(0).to(tl.int64)
    job = jobs + place * _JOB
    data = tl.multiple_of(tl.load(job).to(tl.pointer_type(tl.int32), bitcast=True), 16)
    count = tl.load(job + 1)
    last = (count + (1024 * PER - 1)) // (1024 * PER)
    zero = tl.zeros((), tl.int64)
    one = zero + 1
    _measure(
        data, tl.load(job + 2), tl.load(job + 3),
        ring, table, facts, factors, blocks, spans, chunks, rows, values,
        count, zero, tl.load(job + 4), tl.load(job + 5), zero, last,
        one, one, one, one, one, zero, zero, zero, zero, KIND, SIZE, PER, 1, PACKED, False,
    )


@triton.jit
def _column(ring, at, there, COLUMN: tl.constexpr):
    return tl.load(ring + at * _RECORD + COLUMN, mask=there, other=0)


@triton.jit
def reduce(ring, table, out):
    """Join the records of each program's row into one, always in the same order."""
    row = tl.program_id(0).to(tl.int64)
    start = tl.load(table + row * 2)
    records = tl.load(table + row * 2 + 1)
    line = tl.arange(0, _AT_A_TIME)
    eight = tl.arange(0, 8)
    buckets = tl.zeros((_AT_A_TIME, 64), tl.float64)
    lows = tl.full((_AT_A_TIME,), _INF, tl.float64)
    highs = tl.full((_AT_A_TIME,), -_INF, tl.float64)
    sums = tl.zeros((_AT_A_TIME, 8), tl.float64)
    counts = tl.zeros((_AT_A_TIME, 8), tl.int64)
    for begin in range(0, records, _AT_A_TIME):
        at = start + begin + line
        there = begin + line < records
        raw = tl.load(ring + at[:, None] * _RECORD + tl.arange(0, 64)[None, :], mask=there[:, None], other=0)
        buckets += raw.to(tl.float64, bitcast=True)
        low = _column(ring, at, there, 64).to(tl.float64, bitcast=True)
        high = _column(ring, at, there, 65).to(tl.float64, bitcast=True)
        lows = tl.minimum(lows, tl.where(there, low, _INF))
        highs = tl.maximum(highs, tl.where(there, high, -_INF))
        fives = there[:, None] & (eight < 5)[None, :]
        raw = tl.load(ring + at[:, None] * _RECORD + 66 + eight[None, :], mask=fives, other=0)
        sums += raw.to(tl.float64, bitcast=True)
        counts += tl.load(ring + at[:, None] * _RECORD + 71 + eight[None, :], mask=fives, other=0)
    out += row * _RECORD
    tl.store(out + tl.arange(0, 64), tl.sum(buckets, 0).to(tl.int64, bitcast=True))
    tl.store(out + 64, tl.min(lows, 0).to(tl.int64, bitcast=True))
    tl.store(out + 65, tl.max(highs, 0).to(tl.int64, bitcast=True))
    tl.store(out + 66 + eight, tl.sum(sums, 0).to(tl.int64, bitcast=True), mask=eight < 5)
    tl.store(out + 71 + eight, tl.sum(counts, 0), mask=eight < 5)
