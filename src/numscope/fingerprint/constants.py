"""The fixed pseudo-random numbers of the fingerprint; changing any of them changes every hash and sketch ever stored.

All of them are outputs of splitmix64, addressed by index, so that any language can make the same tables:
`splitmix(seed, k)` is the k-th output of the generator started at `seed`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SKETCH = 64  # numbers in a stored sketch
BUCKETS = 61  # of which these are used: a prime, so that no usual tensor width puts a whole column into one bucket
CHUNK = 65536  # elements per chunk of the sketch
ROW = 64  # elements whose signs are the bits of one word
ROWS = CHUNK // ROW
ROLLS = 64  # rolls are below this
SPAN = 16384  # words per span of the hash: the 128 KB of their factors stay in a core's own cache

_BLOCK = 1024  # words per block of a span
_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1

SEED_PLACES = 1  # place[k]: factor of the k-th word of a block
SEED_BLOCKS = 2  # block[k]: factor of the k-th block of a span
SEED_SPANS = 3  # span_factor(s)
SEED_SIGNS = 1089  # rows of signs; chosen among 4000: constant differences of any length in a chunk are right to 9 %
SEED_FLIPS = 5044  # flips(c); with the rolls chosen among 20: constant and column differences over 96 chunks, 13 %
SEED_ROLLS = 6044  # roll(c)


def splitmix(seed: int, index: int) -> int:
    """Return the `index`-th 64-bit output of splitmix64 started at `seed * 2**32`."""
    z = ((seed << 32) + (index + 1) * _GAMMA) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def splitmix_array(seed: int, index: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return `splitmix` of many indices."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed << 32) + (index.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


@lru_cache(maxsize=1)
def places() -> NDArray[np.int64]:
    """Return the 1024 odd factors of the words of a block."""
    return (splitmix_array(SEED_PLACES, np.arange(_BLOCK)) | np.uint64(1)).view(np.int64)


@lru_cache(maxsize=1)
def blocks() -> NDArray[np.int64]:
    """Return the 16 odd factors of the blocks of a span."""
    return (splitmix_array(SEED_BLOCKS, np.arange(SPAN // _BLOCK)) | np.uint64(1)).view(np.int64)


@lru_cache(maxsize=1)
def factors() -> NDArray[np.int64]:
    """Return the 16384 factors of the words of one span: place times block, mod 2**64."""
    with np.errstate(over="ignore"):
        table = (blocks()[:, None] * places()[None, :]).reshape(-1)
    table.flags.writeable = False
    return table


def span_factors(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the odd factor of each span of words; span 0 has 1."""
    factor = (splitmix_array(SEED_SPANS, spans) | np.uint64(1)).view(np.int64)
    return np.where(spans == 0, np.int64(1), factor)


@lru_cache(maxsize=1)
def sign_rows() -> NDArray[np.uint64]:
    """Return 1024 words; bit j of a word is the sign of the j-th element of a row (1 = minus)."""
    rows = splitmix_array(SEED_SIGNS, np.arange(ROWS))
    rows.flags.writeable = False
    return rows


def rolls(chunks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return by how many rows the sign rows are rolled in each chunk; chunk 0 by none."""
    return np.where(chunks == 0, 0, (splitmix_array(SEED_ROLLS, chunks) % np.uint64(ROLLS)).astype(np.int64))


def flips(chunks: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the word that is xored to every sign row of each chunk; chunk 0 has 0."""
    return np.where(chunks == 0, np.uint64(0), splitmix_array(SEED_FLIPS, chunks))


def signs(index: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sign, +1 or -1, of the elements with these (global, row-major) indices."""
    row, place = np.divmod(index, ROW)
    chunk = row // ROWS
    word = sign_rows()[(row + rolls(chunk)) % ROWS] ^ flips(chunk)
    bit = (word >> place.astype(np.uint64)) & np.uint64(1)
    return 1.0 - 2.0 * bit.astype(np.float64)


@lru_cache(maxsize=1)
def sign_table() -> NDArray[np.float32]:
    """Return a chunk of signs, and its first rows again: chunk c's, flips apart, are the slice that starts at row roll(c)."""
    one = signs(np.arange(CHUNK)).astype(np.float32)
    table = np.concatenate([one, one[: ROLLS * ROW]])
    table.flags.writeable = False
    return table


def chunk_start(chunk: int) -> int:
    """Return where chunk c's slice of `sign_table` starts."""
    return _many_chunk_signs(chunk >> 8)[0][chunk & 255]


@lru_cache(maxsize=256)
def chunk_flips(chunks: tuple[int, ...]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the flips of some chunks as (chunks, 1, 64) signs, and the buckets of their first 61 elements, in a row."""
    flipped = []
    for chunk in chunks:
        _, many = _many_chunk_signs(chunk >> 8)
        flipped.append(many[chunk & 255])
    buckets = (np.array(chunks)[:, None] * (CHUNK % BUCKETS) + np.arange(BUCKETS)) % BUCKETS
    return np.array(flipped, np.float32)[:, None, :], buckets.reshape(-1)


@lru_cache(maxsize=256)
def _many_chunk_signs(group: int) -> tuple[list[int], NDArray[np.float64]]:
    chunks = np.arange(256 * group, 256 * group + 256)
    bits = (flips(chunks)[:, None] >> np.arange(ROW, dtype=np.uint64)) & np.uint64(1)
    return (rolls(chunks) * ROW).tolist(), 1.0 - 2.0 * bits.astype(np.float64)


def span_factor(span: int) -> int:
    """Return `span_factors` of one span as an unsigned number."""
    return _many_span_factors(span >> 10)[span & 1023]


@lru_cache(maxsize=256)
def _many_span_factors(group: int) -> list[int]:
    factors: list[int] = span_factors(np.arange(1024 * group, 1024 * group + 1024)).view(np.uint64).tolist()
    return factors
