"""The hash of many words by matrix products in float64, exactly: half the time of 64-bit integer arithmetic.

A word's factor is (span and block: one for 1024 words) times (place: one for each of these). So a hash is

    sum over p of place[p] * (sum over rows r of factor[r] * word[r, p])        mod 2**64

The inner sum is a matrix product, once a factor is cut into four digits of 16 bits between -2**15 and 2**15: a digit
times a word of 32 bits is at most 2**46, and 128 of them add up to at most 2**53, so that float64 holds every
partial sum exactly, whatever the order in which BLAS adds them, and however many threads it uses.
Contents shorter than that are hashed row by row the other way round: place in five digits of 13 bits, 1024 words a row.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numscope.fingerprint import constants
from numscope.fingerprint.constants import SPAN

LINE = 1024  # words that share the factor of their block and span
LINES = 128  # lines that are summed in one matrix product
DIGITS, _BITS = 4, 16
_PLACE_DIGITS, _PLACE_BITS = 5, 13
_GROUPS = 64  # of lines, whose digits are made at once
_TURN = 16384  # words of a matrix product for which BLAS starts no threads
_SHIFTS = np.arange(_PLACE_DIGITS, dtype=np.int64) * _PLACE_BITS


def add_lines(sums: NDArray[np.int64], words: NDArray[np.int32], first: int, buffer: NDArray[np.float64]) -> None:
    """Add whole lines of words to the sums of a hash: one for each digit and place.

    The first is the content's word number `first`, a multiple of 1024; `buffer` has room for a line or more.
    """
    start = 0
    while start < words.size:
        group, line = divmod((first + start) // LINE, LINES)
        count = min(buffer.size // LINE, (words.size - start) // LINE, LINES - line)
        part = buffer[: count * LINE]
        np.copyto(part, words[start : start + count * LINE])
        digits = _line_digits(group // _GROUPS)[group % _GROUPS, :, line : line + count]
        sums += (digits @ part.reshape(count, LINE)).astype(np.int64)
        start += count * LINE


def join(sums: NDArray[np.int64]) -> int:
    """Return the hash, mod 2**64, that these sums make."""
    return int(np.dot(sums.reshape(-1), _places()))


def hash_rest(raw: NDArray[np.uint8], first: int) -> int:
    """Return the hash of less than a line, filled up with zeros to whole words; the first is word number `first`."""
    if raw.size % 4:
        raw = np.concatenate([raw, np.zeros(-raw.size % 4, np.uint8)])
    span, start = divmod(first, SPAN)
    product = raw.view(np.int32) * constants.factors()[start : start + raw.size // 4]
    return int(np.add.reduce(product)) * constants.span_factor(span)


def hash_rows(words: NDArray[np.int32], buffer: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return the hash of each row of a matrix: contents of equal width, of at most 64 lines."""
    count, width = words.shape
    result = np.zeros(count, np.int64)
    step = LINE if width % LINE else width  # at a time; more than a line only where all lines are whole
    for start in range(0, width, step):
        part = words[:, start : start + step]
        many = buffer.size // part.shape[1]
        for row in range(0, count, many):
            result[row : row + many] += _hash_rows(part[row : row + many], start // LINE, buffer)
    return result.view(np.uint64)


def _hash_rows(words: NDArray[np.int32], block: int, buffer: NDArray[np.float64]) -> NDArray[np.int64]:
    count, width = words.shape
    line = min(width, LINE)
    flat = buffer[: words.size].reshape(count, width)
    np.copyto(flat, words)
    flat = flat.reshape(-1, line)
    many = max(1, _TURN // line)
    whole = len(flat) // many * many
    sums = np.empty((len(flat), _PLACE_DIGITS))
    table = _place_digits()[:, :line].T
    np.matmul(flat[:whole].reshape(-1, many, line), table, out=sums[:whole].reshape(-1, many, _PLACE_DIGITS))
    np.matmul(flat[whole:], table, out=sums[whole:])
    found: NDArray[np.int64] = np.left_shift(sums.astype(np.int64), _SHIFTS).sum(1).reshape(count, -1)
    result: NDArray[np.int64] = (found * _line_factors()[block : block + found.shape[1]]).sum(1)
    return result


@lru_cache(maxsize=1)
def _line_factors() -> NDArray[np.int64]:
    """Return the factors of the first 64 lines of a content."""
    with np.errstate(over="ignore"):
        return (constants.span_factors(np.arange(4))[:, None] * constants.blocks()[None, :]).reshape(-1)


@lru_cache(maxsize=1)
def _place_digits() -> NDArray[np.float64]:
    return _digits(constants.places(), _PLACE_DIGITS, _PLACE_BITS)


def _digits(numbers: NDArray[np.int64], count: int, bits: int) -> NDArray[np.float64]:
    """Return `count` signed digits of `bits` bits of each number, mod 2**64, the lowest first, along a new first axis."""
    half = np.int64(1 << (bits - 1))
    rest: NDArray[np.int64] = numbers.copy()
    digits = np.empty((count, *numbers.shape))
    with np.errstate(over="ignore"):
        for at in range(count):
            digit = ((rest + half) & np.int64((1 << bits) - 1)) - half
            digits[at] = digit
            rest = (rest - digit) >> np.int64(bits)
    return digits


@lru_cache(maxsize=1)
def _places() -> NDArray[np.int64]:
    """Return the places times the weight of each digit."""
    weights = np.int64(1) << (np.arange(DIGITS, dtype=np.int64) * _BITS)
    with np.errstate(over="ignore"):
        return (weights[:, None] * constants.places()[None, :]).reshape(-1)


@lru_cache(maxsize=16)
def _line_digits(bundle: int) -> NDArray[Any]:
    """Return the digits of the factors of 64 groups of 128 lines: (groups, digits, lines)."""
    per = SPAN // LINE
    spans = constants.span_factors(np.arange(_GROUPS * LINES // per) + bundle * (_GROUPS * LINES // per))
    with np.errstate(over="ignore"):
        factors = (spans[:, None] * constants.blocks()[None, :]).reshape(_GROUPS, LINES)
    return np.ascontiguousarray(_digits(factors, DIGITS, _BITS).transpose(1, 0, 2))
