"""Tokens: numbers by which calls are compared, at three levels of strictness.

Calls with equal `strong` tokens have the same operator, arguments, shapes, dtypes and output bits; with equal `exact`
tokens the same operator, shapes and dtypes; with equal `relaxed` tokens the same operator. A call's index (the 5 of
`Functional.linear.5`) enters none of them, because one inserted call shifts the indices of all that follow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numscope.compare.load.side import Ints, Side, Words, distinct

# Odd constants of splitmix64 and xxHash, which spread the bits of a number well.
_ADD, _MULTIPLY, _LAST = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)


@dataclass(frozen=True)
class Tokens:
    """The tokens of a side's calls, and the tensors by which calls are compared."""

    strong: Words
    exact: Words
    relaxed: Words
    output: Ints  # row of the tensor in `output.0`, -1 for none
    first: Words  # bits of the first input; 0 where it is constant or not measured
    bits: Words  # dtype, shape and bits of the outputs, whatever the operator; 0 where all are constant or not measured


def _mix(*columns: Ints | Words) -> Words:
    value = np.full(len(columns[0]), 0x27D4EB2F165667C5, dtype=np.uint64)
    for column in columns:
        value ^= column.astype(np.uint64) + _ADD + (value << np.uint64(6)) + (value >> np.uint64(2))
        value *= _MULTIPLY
        value ^= value >> np.uint64(29)
    return value * _LAST


def _sum_by_call(values: Words, start: Ints) -> Words:
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)])
    sums: Words = total[start[1:]] - total[start[:-1]]
    return sums


def tokens(side: Side) -> Tokens:
    """Return the tokens of all calls of a side."""
    calls, slots, tensors, book = side.calls, side.slots, side.tensors, side.book
    row = slots.tensor
    measured = row >= 0
    safe = np.where(measured, row, 0)
    empty = not len(tensors.dtype)
    dtype = np.full(len(row), -1) if empty else np.where(measured, tensors.dtype[safe], -1)
    shape = np.full(len(row), -1) if empty else np.where(measured, tensors.shape[safe], -1)
    content = np.zeros(len(row), np.uint64) if empty else np.where(measured, tensors.hash[safe], np.uint64(0))
    present, index = distinct(slots.slot)
    heads = [book.words[code] for code in present.tolist()]
    # Parameters belong to the module's path: their values are compared, not whether a call shows them.
    counted = np.array([head.startswith(("input", "kwargs", "output")) for head in heads], dtype=np.bool_)
    out = np.array([head.startswith("output") for head in heads], dtype=np.bool_)
    layout = _sum_by_call(np.where(counted[index], _mix(slots.slot, dtype, shape), np.uint64(0)), slots.start)
    bits = _sum_by_call(np.where(out[index], _mix(slots.slot, dtype, shape, content), np.uint64(0)), slots.start)
    # Optimizers of different classes are paired.
    job = np.where(calls.kind == book.code("optimizer"), -1, calls.op)
    relaxed = _mix(calls.kind, calls.phase, job)
    exact = _mix(relaxed, calls.op, np.where(calls.kind == book.code("module"), calls.module_class, -1), layout)
    strong = _mix(exact, calls.arguments, bits)
    # Many calls have a constant output (a mask of ones, a zero): it identifies none of them.
    telling = np.zeros(len(row), np.bool_) if empty else measured & (tensors.min[safe] < tensors.max[safe])
    tells = _sum_by_call((out[index] & telling).astype(np.uint64), slots.start) > 0
    output = np.full(len(calls), -1)
    first = np.zeros(len(calls), np.uint64)
    for words, fill in ((("output.0", "output"), output), (("input.0",), first)):
        for word in words:
            rows = np.flatnonzero((slots.slot == book.code(word)) & measured)
            rows = rows[telling[rows]] if word == "input.0" else rows
            fill[slots.call[rows]] = content[rows] if word == "input.0" else row[rows]
    return Tokens(strong, exact, relaxed, output, first, np.where(tells, bits, np.uint64(0)))


def occurrences(keys: Words) -> Words:
    """Make keys distinct: the k-th occurrence of a key has k mixed in."""
    sort = np.argsort(keys, kind="stable")
    ordered = keys[sort]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(keys) else np.zeros(0, np.bool_)
    begin = np.maximum.accumulate(np.where(first, np.arange(len(keys)), 0))
    count = np.empty(len(keys), dtype=np.uint64)
    count[sort] = np.arange(len(keys)) - begin
    return keys.astype(np.uint64) + count * _ADD


def join(a: Words, b: Words) -> tuple[Ints, Ints]:
    """Return the positions in a and in b of the keys they share; keys are distinct on each side."""
    _, place_a, place_b = np.intersect1d(a, b, assume_unique=False, return_indices=True)
    sort = np.argsort(place_a)
    return place_a[sort], place_b[sort]
