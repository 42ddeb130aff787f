"""Reads how lines were put elsewhere: fused, split, interleaved, padded, in shards; and whether in the order of the names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from numscope.weights.matching import names
from numscope.weights.matching.lines import Placement, in_groups, interleaved
from numscope.weights.matching.names import short
from numscope.weights.tensor import Tensor

Relation = Literal[
    "equal",
    "cast",
    "transposed",
    "fused",
    "split",
    "interleaved",
    "padded",
    "tied",
    "scaled",
    "merged",
    "quantised",
    "none",
]
_LISTED = 16  # parts of a tensor that are named one by one


@dataclass(frozen=True)
class Structure:
    """The way in which lines were put elsewhere."""

    relation: Relation
    words: str
    signature: tuple[object, ...]  # the same for peers that were converted the same way
    is_regular: bool = True  # as a conversion would do it
    is_in_order: bool = True  # of the names
    is_transposed: bool = False


@dataclass(frozen=True)
class _Segment:
    b: int
    a: int
    start: int  # in the suspect's tensor
    at: int  # in the reference's tensor
    length: int


def read(placement: Placement, a: Sequence[Tensor], b: Sequence[Tensor]) -> Structure:
    """Return how the suspect's lines make the reference's."""
    turned = placement.axes.is_turned
    line = "column" if placement.axes.b else "row"
    if len(a) == 1 and len(b) == 1:
        found = _one(placement, line)
    else:
        found = _many(placement, a, b, line)
    if not turned:
        return found
    words = "transposed" if found.relation == "equal" else f"transposed, {found.words}"
    relation: Relation = "transposed" if found.relation == "equal" else found.relation
    return Structure(relation, words, ("transposed", *found.signature), found.is_regular, found.is_in_order, True)


def _one(placement: Placement, line: str) -> Structure:
    """Return the structure of one tensor that is made of one."""
    order, count_a, count_b = placement.order, placement.counts_a[0], placement.counts_b[0]
    line_numbers = np.arange(count_b)
    if count_a != count_b:
        common = min(count_a, count_b)
        there = order >= 0
        is_start = bool(np.array_equal(order[there], line_numbers[there]) and there[:common].all())
        word = "fewer" if count_a < count_b else "more"
        return Structure("padded", f"A has {abs(count_a - count_b)} {line}s {word}", ("padded",), is_start, is_start)
    if np.array_equal(order, line_numbers):
        return Structure("equal", "equal", ("equal",))
    if (order < 0).any():
        return Structure("equal", f"some {line}s are elsewhere", ("partly",), False, False)
    for (blocks, parts, lines), regular in interleaved(count_a):
        for name, one in (("", regular), ("back", np.argsort(regular, kind="stable"))):
            if np.array_equal(order, one):
                if parts == 2 or lines == 2:
                    words = f"{line}s interleaved as between the two rotary layouts, in {blocks} heads"
                else:
                    words = f"{line}s interleaved, {blocks} blocks of {parts} parts"
                return Structure("interleaved", words, ("interleaved", parts, lines, name, line), True, False)
    segments = _segments(placement)
    lengths = {segment.length for segment in segments}
    if len(lengths) == 1 and len(segments) <= _LISTED:
        length = lengths.pop()
        shards = [segment.start // length for segment in segments]
        words = f"its {len(shards)} parts of {length} {line}s are in the order {', '.join(map(str, shards))}"
        return Structure("interleaved", words, ("shards", *shards), False, False)
    rolled = np.unique((order - line_numbers) % count_b)
    if len(rolled) == 1:
        shift = int(rolled[0])
        shift = shift if shift <= count_b // 2 else shift - count_b
        return Structure("interleaved", f"shifted by {shift} {line}s", ("rolled", shift), False, False)
    moved = int((order != line_numbers).sum())
    return Structure("interleaved", f"{moved} of {count_b} {line}s are elsewhere", ("irregular",), False, False)


def _many(placement: Placement, a: Sequence[Tensor], b: Sequence[Tensor], line: str) -> Structure:
    """Return the structure of several tensors, on either side; both are in the order in which their names go."""
    segments = _segments(placement)
    fused = len(b) == 1
    sequence = [segment.a if fused else segment.b for segment in (segments if fused else _by_suspect(segments))]
    members = a if fused else b
    first = list(dict.fromkeys(sequence))
    in_order = first == sorted(first)
    listed = ", ".join(short(members[number].name) for number in first[:_LISTED])
    relation: Relation = "fused" if fused else "split"
    if len(a) > 1 and len(b) > 1:
        ascending = all(
            [s.start for s in segments if (s.a, s.b) == pair] == sorted(s.start for s in segments if (s.a, s.b) == pair)
            for pair in {(s.a, s.b) for s in segments}
        ) and all(
            [s.a for s in segments if s.b == number] == sorted(s.a for s in segments if s.b == number)
            for number in range(len(b))
        )
        words = f"{len(a)} shards put together along {line}s, {len(b)} tensors"
        return Structure("interleaved", words, ("resharded", len(a), len(b)), ascending, ascending)
    if len(sequence) == len(first) and (placement.order >= 0).all():
        verb = "one after the other" if fused else "cut apart"
        word = "columns" if line == "column" else "rows"
        return Structure(relation, f"{listed} {verb} along {word}", (relation, line, tuple(first)), True, in_order)
    stacked = _stacked(placement, a, b, line)
    if stacked is not None:
        return stacked
    counts = placement.counts_a if fused else placement.counts_b
    order = placement.order if fused else np.argsort(placement.order, kind="stable")
    groups = _groups(order, counts, first)
    if groups:
        words = f"{listed} interleaved in {groups} groups"
        return Structure("interleaved", words, ("groups", groups, tuple(first)), True, in_order)
    words = f"{listed} in {len(segments)} pieces"
    return Structure(relation, words, ("pieces", len(segments)), False, len(sequence) == len(first) and in_order)


def _stacked(placement: Placement, a: Sequence[Tensor], b: Sequence[Tensor], line: str) -> Structure | None:
    """Return the structure of layers or experts in one tensor, each of several tensors; None where it is not so."""
    members = a if len(b) == 1 else b
    groups = [list(group) for _, group in groupby(members, key=lambda tensor: names.read(tensor.name).numbers)]
    if len(groups) < 2 or len({len(group) for group in groups}) > 1 or len(groups[0]) < 2:
        return None
    parts, tensor, start = [], 0, 0
    counts = placement.counts_a if len(b) == 1 else placement.counts_b
    for group in groups:
        inner = counts[tensor : tensor + len(group)]
        size = sum(inner)
        order = placement.order[start : start + size] - start
        if len(order) != size or order.min(initial=0) < 0 or order.max(initial=0) >= size:
            return None
        sides = (inner, (size,)) if len(b) == 1 else ((size,), inner)
        equal, error = placement.equal[start : start + size], placement.error[start : start + size]
        part = Placement(placement.axes, order, equal, error, *sides)
        parts.append(_many(part, group if len(b) == 1 else a, b if len(b) == 1 else group, line))
        tensor, start = tensor + len(group), start + size
    first = parts[0]
    if any(part.signature != first.signature for part in parts):
        return None
    words = f"{len(groups)} layers or experts, one after the other, each of {first.words}"
    signature = ("stacked", len(groups), *first.signature)
    return Structure(first.relation, words, signature, first.is_regular, first.is_in_order)


def _groups(order: NDArray[np.int64], counts: tuple[int, ...], first: list[int]) -> int:
    """Return in how many groups the tensors alternate, 0 where they don't."""
    if sorted(first) != list(range(len(counts))) or len(order) != sum(counts):
        return 0
    starts = np.cumsum([0, *counts[:-1]])
    for groups in range(2, min(counts) + 1):
        if any(count % groups for count in counts):
            continue
        moved = in_groups(tuple(counts[number] for number in first), groups)
        permuted = np.concatenate([starts[number] + np.arange(counts[number]) for number in first])
        if np.array_equal(order, permuted[moved]):
            return groups
    return 0


def _by_suspect(segments: Sequence[_Segment]) -> list[_Segment]:
    return sorted(segments, key=lambda segment: (segment.a, segment.start))


def _segments(placement: Placement) -> list[_Segment]:
    """Return the runs of lines that are next to each other on both sides."""
    starts_a = np.cumsum([0, *placement.counts_a])
    starts_b = np.cumsum([0, *placement.counts_b])
    lines = np.flatnonzero(placement.order >= 0)
    if not len(lines):
        return []
    order = placement.order[lines]
    tensor_a = np.searchsorted(starts_a, order, side="right") - 1
    tensor_b = np.searchsorted(starts_b, lines, side="right") - 1
    breaks = (np.diff(order) != 1) | (np.diff(lines) != 1) | (np.diff(tensor_a) != 0) | (np.diff(tensor_b) != 0)
    cuts = np.concatenate([[0], np.flatnonzero(breaks) + 1, [len(lines)]])
    first = order - starts_a[tensor_a]
    place = lines - starts_b[tensor_b]
    return [
        _Segment(int(tensor_b[i]), int(tensor_a[i]), int(first[i]), int(place[i]), int(j - i))
        for i, j in pairwise(cuts)
    ]
