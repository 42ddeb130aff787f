"""Pairs of two sequences: the best there is, in order, and an inserted call shifts nothing."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from numscope.compare.align.sequence import best_path, pair_sequences
from numscope.compare.align.tokens import Tokens

words = st.lists(st.integers(1, 4), max_size=30)


def tokens(values: list[int], strong: list[int] | None = None) -> Tokens:
    codes = np.array(values, dtype=np.uint64)
    return Tokens(
        np.array(strong, dtype=np.uint64) if strong else codes + np.uint64(100),
        codes,
        codes,
        np.full(len(codes), -1),
        np.zeros(len(codes), np.uint64),
        np.zeros(len(codes), np.uint64),
    )


def paired(a: list[int], b: list[int], bits: tuple[list[int], list[int]] | None = None) -> list[tuple[int, int]]:
    left, right = pair_sequences(
        tokens(a, bits and bits[0]), tokens(b, bits and bits[1]), np.arange(len(a)), np.arange(len(b))
    )
    return list(zip(left.tolist(), right.tolist()))


@given(words)
def test_a_sequence_is_paired_with_itself(values: list[int]) -> None:
    assert paired(values, values) == [(i, i) for i in range(len(values))]


@given(words, words)
def test_pairs_are_alike_and_in_order(a: list[int], b: list[int]) -> None:
    found = paired(a, b)
    assert all(a[i] == b[j] for i, j in found)
    assert all(x[0] < y[0] and x[1] < y[1] for x, y in itertools.pairwise(found))


@given(words, words)
def test_no_pairing_has_more_pairs(a: list[int], b: list[int]) -> None:
    longest = np.zeros((len(a) + 1, len(b) + 1), dtype=int)
    for i, j in itertools.product(range(len(a)), range(len(b))):
        longest[i + 1, j + 1] = max(longest[i, j + 1], longest[i + 1, j], longest[i, j] + (a[i] == b[j]))
    assert len(paired(a, b)) >= longest[-1, -1] - 1  # a head or tail that is equal is taken as it is


@given(st.integers(0, 60), st.integers(1, 5))
def test_an_inserted_call_shifts_nothing(place: int, times: int) -> None:
    base = [1, 2, 3, 4, 2, 3] * 10
    longer = base[:place] + [9] * times + base[place:]
    assert paired(longer, base) == [(i if i < place else i + times, i) for i in range(len(base))]


def test_a_repeated_operator_is_found_where_its_bits_say() -> None:
    # linear linear against linear: the second one has the bits of the reference's.
    assert paired([1, 1, 2], [1, 2], ([50, 60, 70], [60, 71])) == [(1, 0), (2, 1)]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 4000), min_size=1, max_size=30, unique=True))
def test_insertions_anywhere_in_a_long_periodic_sequence(places: list[int]) -> None:
    base = [1, 2, 3, 4] * 1000
    longer, expected = [], []
    for index, value in enumerate(base):
        if index in places:
            longer.append(9)
        expected.append((len(longer), index))
        longer.append(value)
    assert paired(longer, base) == expected


@given(st.lists(st.lists(st.integers(0, 5), min_size=4, max_size=4), max_size=4))
def test_the_best_path_has_the_greatest_score(rows: list[list[int]]) -> None:
    score = np.array(rows, dtype=np.int32).reshape(-1, 4)

    def best(i: int, j: int) -> int:
        if i == len(score) or j == 4:
            return 0
        take = int(score[i, j]) + best(i + 1, j + 1) if score[i, j] > 0 else 0
        return max(take, best(i + 1, j), best(i, j + 1))

    left, right = best_path(score)
    assert sum(int(score[i, j]) for i, j in zip(left, right)) == best(0, 0)
