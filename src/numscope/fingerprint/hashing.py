"""The hash of many words by matrix products in float64, exactly: half the time of 64-bit integer arithmetic.

A word's factor is (span and block: one for 1024 words) times (place: one for each of these). So a hash is

    sum over p of place[p] * (sum over rows r of factor[r] * word[r, p])        mod 2**64

The inner sum is a matrix product, once a factor is cut into four digits of 16 bits between -2**15 and 2**15: a digit
times a word of 32 bits is at most 2**46, and 128 of them add up to at most 2**53, so that float64 holds every
partial sum exactly, whatever the order in which BLAS adds them, and however many threads it uses.
Short contents are hashed the other way round, many at a time: places in digits, 128 words a sum.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from numscope.fingerprint import constants
from numscope.fingerprint.constants import SPAN

LINE = 1024  # words that share the factor of their block and span
LINES = 128  # lines summed in one matrix product
DIGITS, _BITS = 4, 16
_GROUPS = 64  # of lines: their digits are made at once
_PIECE = 128  # words of a line summed in one matrix product


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
    """Return the hash of these sums, mod 2**64."""
    return int(np.dot(sums.reshape(-1), _places()))


def hash_rest(raw: NDArray[np.uint8], first: int) -> int:
    """Return the hash of less than a line, filled up with zeros to whole words; the first is word number `first`."""
    if raw.size % 4:
        raw = np.concatenate([raw, np.zeros(-raw.size % 4, np.uint8)])
    span, start = divmod(first, SPAN)
    product = raw.view(np.int32) * constants.factors()[start : start + raw.size // 4]
    return int(np.add.reduce(product)) * constants.span_factor(span)


def hash_rows(words: NDArray[np.int32], buffer: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return the hash of each row of a matrix, of at most 64 lines: part of a line, of 64 words or more, or whole lines."""
    count, width = words.shape
    result = np.empty(count, np.int64)
    piece = min(width, _PIECE)
    pieces = min(width, LINE) // piece
    table = _place_digits()[:pieces, :piece]
    many = buffer.size // width
    for start in range(0, count, many):
        part = words[start : start + many]
        flat = buffer[: part.size].reshape(part.shape)
        np.copyto(flat, part)
        sums = flat.reshape(-1, pieces, piece).transpose(1, 0, 2) @ table  # (pieces, lines of all rows, digits)
        lines = (sums.astype(np.int64) @ _weights()).sum(0).reshape(len(part), -1)
        result[start : start + many] = (lines * _line_factors()[: lines.shape[1]]).sum(1)
    return result.view(np.uint64)


@lru_cache(maxsize=1)
def _line_factors() -> NDArray[np.int64]:
    """Return the factors of the first 64 lines of a content."""
    with np.errstate(over="ignore"):
        return (constants.span_factors(np.arange(4))[:, None] * constants.blocks()[None, :]).reshape(-1)


@lru_cache(maxsize=1)
def _place_digits() -> NDArray[np.float64]:
    """Return the digits of the places: (pieces of a line, words, digits)."""
    return np.ascontiguousarray(_digits(constants.places()).reshape(DIGITS, -1, _PIECE).transpose(1, 2, 0))


@lru_cache(maxsize=1)
def _weights() -> NDArray[np.int64]:
    return np.int64(1) << (np.arange(DIGITS, dtype=np.int64) * _BITS)


def _digits(numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the four signed digits of each number, mod 2**64, the lowest first, along a new first axis."""
    half = np.int64(1 << (_BITS - 1))
    rest: NDArray[np.int64] = numbers.copy()
    digits = np.empty((DIGITS, *numbers.shape))
    with np.errstate(over="ignore"):
        for at in range(DIGITS):
            digit = ((rest + half) & np.int64((1 << _BITS) - 1)) - half
            digits[at] = digit
            rest = (rest - digit) >> np.int64(_BITS)
    return digits


@lru_cache(maxsize=1)
def _places() -> NDArray[np.int64]:
    """Return the places times the weight of each digit."""
    with np.errstate(over="ignore"):
        return (_weights()[:, None] * constants.places()[None, :]).reshape(-1)


@lru_cache(maxsize=16)
def _line_digits(bundle: int) -> NDArray[np.float64]:
    """Return the digits of the factors of 64 groups of 128 lines: (groups, digits, lines)."""
    per = SPAN // LINE
    spans = constants.span_factors(np.arange(_GROUPS * LINES // per) + bundle * (_GROUPS * LINES // per))
    with np.errstate(over="ignore"):
        factors = (spans[:, None] * constants.blocks()[None, :]).reshape(_GROUPS, LINES)
    return np.ascontiguousarray(_digits(factors).transpose(1, 0, 2))
