"""Columns that go to the browser as bytes come back the same: NaN, infinities and nulls are three different things."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from numscope.report.pages.frames import Column, decode, encode

floats = st.lists(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)), min_size=1, max_size=40)
words = st.lists(st.one_of(st.none(), st.text(max_size=8)), min_size=1, max_size=40)


def same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return a == b


@given(floats)
def test_numbers_and_nulls_survive(values: list[float | None]) -> None:
    valid = np.array([value is not None for value in values])
    numbers = np.array([0.0 if value is None else value for value in values])
    header, columns = decode(encode([Column("x", numbers, valid)], {"total": 7}))
    assert header["total"] == 7
    assert header["rows"] == len(values)
    assert all(same(a, b) for a, b in zip(values, columns["x"]))


@given(words)
def test_words_and_nulls_survive(values: list[str | None]) -> None:
    known = sorted({value for value in values if value is not None})
    codes = np.array([-1 if value is None else known.index(value) for value in values])
    _, columns = decode(encode([Column("word", codes, words=known)]))
    assert columns["word"] == values


def test_every_column_starts_at_a_multiple_of_eight() -> None:
    frame = encode([Column("a", np.zeros(3, "u1")), Column("b", np.zeros(3, "f8")), Column("c", np.zeros(3, "f4"))])
    header, _ = decode(frame)
    assert (4 + int.from_bytes(frame[:4], "little")) % 8 == 0
    assert all(head["at"] % 8 == 0 for head in header["columns"])


def test_large_counts_are_sent_as_doubles() -> None:
    _, columns = decode(encode([Column("n", np.array([2**40, 1]))]))
    assert columns["n"] == [2**40, 1]
