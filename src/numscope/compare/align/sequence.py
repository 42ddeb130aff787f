"""Pairs two sequences of calls in order: in linear time where they agree, in bounded windows where they do not.

Runs of equal calls are skipped at memory speed. Where the sequences differ, a window of both is paired by dynamic
programming. A pair with the same output bits scores more than one with the same shapes, and that more than one with the
same operator alone, so that an inserted call is located exactly, not somewhere near.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from numscope.compare.align.tokens import Tokens
from numscope.compare.load.side import Flags, Ints, Words

_WINDOW = 96
_WIDEST = 1536
_MOST_NEAR = 40_000  # pairs whose values are compared in one window
_BACK = 12  # how far a window reaches back into the equal run before it: the run's end may be a coincidence
_STRONG, _EXACT, _RELAXED, _NEAR, _FIRST = 5, 9, 4, 6, 3

Near = Callable[[Ints, Ints], Flags]  # which of these pairs of tensors have nearly the same values


def pair_sequences(a: Tokens, b: Tokens, rows_a: Ints, rows_b: Ints, near: Near | None = None) -> tuple[Ints, Ints]:
    """Return the rows of both sides that belong together, in order."""
    exact_a, exact_b = a.exact[rows_a], b.exact[rows_b]
    if len(exact_a) == len(exact_b) and np.array_equal(exact_a, exact_b):
        return rows_a, rows_b
    strong_a, strong_b = a.strong[rows_a], b.strong[rows_b]
    n, m = len(rows_a), len(rows_b)
    head = _equal_run(strong_a, strong_b)
    tail = min(_equal_run(exact_a[::-1], exact_b[::-1]), n - head, m - head)
    paired_a: list[Ints] = [np.arange(head)]
    paired_b: list[Ints] = [np.arange(head)]
    i = j = head
    end_a, end_b = n - tail, m - tail
    window = _WINDOW
    while i < end_a and j < end_b:
        wide_a, wide_b = min(i + window, end_a), min(j + window, end_b)
        got_a, got_b = best_path(_scores(a, b, rows_a[i:wide_a], rows_b[j:wide_b], near))
        last = wide_a == end_a and wide_b == end_b
        if not last:
            # The end of a window may pair differently in a longer window: keep only its beginning.
            keep = int(np.searchsorted(np.maximum(got_a, got_b), window * 3 // 4))
            if keep < window // 6 and window < _WIDEST:
                window *= 2
                continue
            got_a, got_b = got_a[:keep], got_b[:keep]
        paired_a.append(got_a + i)
        paired_b.append(got_b + j)
        if last:
            break
        if len(got_a):
            i, j = i + int(got_a[-1]) + 1, j + int(got_b[-1]) + 1
        else:
            i, j = i + window * 3 // 4, j + window * 3 // 4
        window = _WINDOW
        run = _equal_run(exact_a[i:end_a], exact_b[j:end_b])
        if run > _BACK:
            paired_a.append(np.arange(i, i + run - _BACK))
            paired_b.append(np.arange(j, j + run - _BACK))
            i, j = i + run - _BACK, j + run - _BACK
    paired_a.append(np.arange(end_a, n))
    paired_b.append(np.arange(end_b, m))
    return rows_a[np.concatenate(paired_a)], rows_b[np.concatenate(paired_b)]


def _scores(a: Tokens, b: Tokens, rows_a: Ints, rows_b: Ints, near: Near | None) -> NDArray[np.int32]:
    """Return the score of each pair of rows; 0 for pairs of different operators."""
    relaxed = a.relaxed[rows_a, None] == b.relaxed[None, rows_b]
    score = np.where(a.exact[rows_a, None] == b.exact[None, rows_b], _EXACT, _RELAXED * relaxed).astype(np.int32)
    strong = a.strong[rows_a, None] == b.strong[None, rows_b]
    first = (a.first[rows_a, None] == b.first[None, rows_b]) & (a.first[rows_a, None] > 0)
    score += np.where(strong, _STRONG, 0) + np.where(first & relaxed, _FIRST, 0)
    if near is not None:
        left, right = np.nonzero(relaxed)
        if 0 < len(left) <= _MOST_NEAR:
            alike = near(a.output[rows_a[left]], b.output[rows_b[right]])
            score[left[alike], right[alike]] += _NEAR
    return score


def _equal_run(a: Words, b: Words) -> int:
    """Return the number of equal leading elements, without comparing much more than those."""
    length, done, step = min(len(a), len(b)), 0, 256
    while done < length:
        upto = min(done + step, length)
        different = a[done:upto] != b[done:upto]
        if different.any():
            return done + int(different.argmax())
        done, step = upto, step * 4
    return length


def best_path(score: NDArray[np.int32]) -> tuple[Ints, Ints]:
    """Return the pairs, increasing on both sides, with the greatest total score; only positive scores pair."""
    n, m = score.shape
    table = np.zeros((n + 1, m + 1), dtype=np.int64)
    for row in range(n):
        best = np.maximum(table[row, 1:], np.where(score[row] > 0, table[row, :-1] + score[row], 0))
        table[row + 1, 1:] = np.maximum.accumulate(best)
    pairs_a, pairs_b = [], []
    i, j = n, m
    while i and j:
        here = table[i, j]
        if here == table[i - 1, j]:
            i -= 1
        elif here == table[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs_a.append(i)
            pairs_b.append(j)
    return np.array(pairs_a[::-1], dtype=np.int64), np.array(pairs_b[::-1], dtype=np.int64)
