"""Pairs the elements of two lists of tensors that differ in length.

Where one side takes the norm of all gradients but one, every element after the missing one has another index than its
counterpart. Elements are paired in order: by their bits, then by their shapes.
"""

from __future__ import annotations

from difflib import SequenceMatcher

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.optimizer_parameters import pair_labels
from numscope.compare.load.side import Ints, Side

_MOST = 4096  # elements: longer lists are paired by index


def keys(
    a: Side, b: Side, alignment: Alignment, pair_a: Ints, slot_a: Ints, pair_b: Ints, slot_b: Ints
) -> tuple[Ints, Ints]:
    """Return a key for each slot of both sides' paired calls; slots of equal keys belong together."""
    width = len(a.book.words) + 1
    key_a, key_b = pair_a * width + a.slots.slot[slot_a], pair_b * width + b.slots.slot[slot_b]
    if np.array_equal(key_a, key_b):
        return key_a, key_b
    count = max(int(pair_a.max(initial=-1)), int(pair_b.max(initial=-1))) + 1
    uneven = np.bincount(pair_a, minlength=count) != np.bincount(pair_b, minlength=count)
    for pair in np.flatnonzero(uneven).tolist():
        lists_a, lists_b = _lists(a, _places(pair_a, pair), slot_a), _lists(b, _places(pair_b, pair), slot_b)
        for name in lists_a.keys() & lists_b.keys():
            inputs_a, inputs_b = lists_a[name], lists_b[name]
            if name == "output" or len(inputs_a) == len(inputs_b) or max(len(inputs_a), len(inputs_b)) > _MOST:
                continue
            pairs = _in_order(a, b, slot_a[inputs_a], slot_b[inputs_b])
            _renumber(key_a, key_b, inputs_a, inputs_b, pairs)
            outputs_a, outputs_b = lists_a.get("output", []), lists_b.get("output", [])
            if len(outputs_a) == len(inputs_a) and len(outputs_b) == len(inputs_b):
                _renumber(key_a, key_b, outputs_a, outputs_b, pairs)
    pair_labels(a, b, alignment, pair_a, slot_a, pair_b, slot_b, key_a, key_b)
    return key_a, key_b


def _places(pairs: Ints, pair: int) -> range:
    """Return the range of a pair's slots, which are consecutive."""
    return range(int(np.searchsorted(pairs, pair)), int(np.searchsorted(pairs, pair + 1)))


def _lists(side: Side, positions: range, rows: Ints) -> dict[str, list[int]]:
    """Return the positions of the elements of each list among the slots of one call; positional arguments are no list."""
    lists: dict[str, list[int]] = {}
    for position in positions:
        name, _, number = side.book.words[side.slots.slot[rows[position]]].rpartition(".")
        if number.isdecimal() and (name == "output" or name.startswith(("input.", "kwargs."))):
            lists.setdefault(name, []).append(position)
    return lists


def _in_order(a: Side, b: Side, rows_a: Ints, rows_b: Ints) -> list[tuple[int, int]]:
    """Return the pairs of indices of the elements of two lists that belong together."""
    one, other = _tokens(a, rows_a), _tokens(b, rows_b)
    pairs: list[tuple[int, int]] = []
    begin_a = begin_b = 0
    for i, j, size in SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks():
        shapes_a, shapes_b = ([token[0] for token in one[begin_a:i]], [token[0] for token in other[begin_b:j]])
        for x, y, run in SequenceMatcher(None, shapes_a, shapes_b, autojunk=False).get_matching_blocks():
            pairs += [(begin_a + x + k, begin_b + y + k) for k in range(run)]
        pairs += [(i + k, j + k) for k in range(size)]
        begin_a, begin_b = i + size, j + size
    return pairs


def _tokens(side: Side, rows: Ints) -> list[tuple[int, int]]:
    tensors = side.slots.tensor[rows]
    return [(int(side.tensors.shape[t]), int(side.tensors.hash[t])) if t >= 0 else (-1, -1) for t in tensors.tolist()]


def _renumber(
    key_a: Ints, key_b: Ints, positions_a: list[int], positions_b: list[int], pairs: list[tuple[int, int]]
) -> None:
    """Write the reference's key into both sides for paired elements, and a unique key for all others."""
    kept = key_b[positions_b].copy()
    key_a[positions_a] = [-1 - 2 * position for position in positions_a]
    key_b[positions_b] = [-2 - 2 * position for position in positions_b]
    for x, y in pairs:
        key_a[positions_a[x]] = key_b[positions_b[y]] = kept[y]
