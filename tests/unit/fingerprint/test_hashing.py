"""The hash by matrix products is the hash of the definition, for the words that are hardest on float64, too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from numscope.fingerprint import constants
from numscope.fingerprint.chunks import STEP, Measure, Scratch
from numscope.fingerprint.constants import SPAN
from numscope.fingerprint.definition import hash64
from numscope.fingerprint.hashing import LINE, LINES, _line_digits, _place_digits, add_lines, hash_rest, hash_rows, join
from numscope.fingerprint.kinds import KINDS

Words = NDArray[np.int32]
LEAST, GREATEST = -(2**31), 2**31 - 1


def _random(count: int) -> Words:
    return np.random.default_rng(count).integers(LEAST, GREATEST, count, np.int32, endpoint=True)


WORDS: list[Callable[[int], Words]] = [
    _random,
    lambda count: np.full(count, LEAST, np.int32),
    lambda count: np.full(count, GREATEST, np.int32),
    lambda count: np.full(count, -1, np.int32),
]


def test_digits_make_up_the_factors() -> None:
    spans = constants.span_factors(np.arange(8 * 64))
    factors = (spans[:, None] * constants.blocks()[None, :]).reshape(64, LINES)
    digits = _line_digits(0).astype(np.int64)
    assert (sum(digits[:, at] << (16 * at) for at in range(4)) == factors).all()
    assert np.abs(digits).max() <= 2**15
    places = _place_digits().astype(np.int64)
    assert (sum(places[..., at] << (16 * at) for at in range(4)).reshape(-1) == constants.places()).all()
    assert np.abs(places).max() <= 2**15


def test_the_largest_sums_are_exact_in_float64() -> None:
    """Where every digit had its largest magnitude, all products the same sign."""
    worst = np.full((1, LINES), 2.0**15) @ np.full((LINES, LINE), -(2.0**31))
    assert worst[0, 0] == -(2**53)


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("lines", [1, 16, 64, 127, 128, 129, 300])
@pytest.mark.parametrize("room", [1, 64, 128])
def test_lines_add_up_to_the_definition(words: Callable[[int], Words], lines: int, room: int) -> None:
    content = words(lines * LINE)
    sums = np.zeros((4, LINE), np.int64)
    add_lines(sums, content, 0, np.empty(room * LINE))
    assert join(sums) % 2**64 == hash64(content)


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("width", [64, 128, 256, 512, 1024, 2048, 3072, 16384, 24576, 32768])
def test_rows_have_the_hash_of_the_definition(words: Callable[[int], Words], width: int) -> None:
    for count in (1, 3, 131072 // width):
        matrix = words(count * width).reshape(count, width)
        found = hash_rows(matrix, np.empty(65536))
        some = {0, count // 2, count - 1}
        assert all(int(found[row]) == hash64(matrix[row]) for row in some)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 4095])
def test_what_is_left_of_a_line(size: int) -> None:
    raw = np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)
    before = np.zeros(4 * (3 * SPAN + 5 * LINE), np.uint8)
    assert hash_rest(raw, 3 * SPAN + 5 * LINE) % 2**64 == hash64(np.concatenate([before, raw]))


def test_many_groups_of_lines() -> None:
    content = _random(65 * LINES * LINE)  # beyond what is made at once
    one = Measure(KINDS["float32"], content.size, Scratch())
    for start in range(0, content.size, STEP):
        one.add_hash(content[start : start + STEP].view(np.uint8))
    assert one.hash_so_far() == hash64(content)
