"""The columns of a run's tables, made in the writer's thread from the rows of numbers that the recorder has buffered."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args, get_type_hints

import numpy as np
import pyarrow as pa

from numscope.capture.recording.interned import Shapes, Strings, nullable
from numscope.capture.recording.rows import CallRow, Column, SlotRow, TensorRow
from numscope.fingerprint.columns import Fingerprints

# In the place of a fingerprint's row: the first of those that an earlier step has measured; the next is less.
AGAIN = -2
_Numbers = np.ndarray[Any, np.dtype[np.int32]]
_PARTS = 6  # batches of a step are known to the next one up to this; those that follow have one place
_Maker = Callable[[_Numbers], Any]
_Words = np.ndarray[Any, np.dtype[np.int64]]  # the columns of fingerprints but the sketch, as bits
_Sketches = np.ndarray[Any, np.dtype[np.float64]]
_WORDS = (
    *((name, np.dtype(np.int64)) for name in ("elements", "nan", "posinf", "neginf", "zero")),
    *((name, np.dtype(np.float64)) for name in ("min", "max", "mean", "l2")),
    ("hash", np.dtype(np.uint64)),
)


class Lasting:
    """A fingerprint that outlives its step: a later one refers to it, where the tensor is still the same."""

    __slots__ = ("row", "sketches", "words")

    # Where it is; nowhere until the batch that measured the tensor is written, which is before it is asked for.
    words: _Words
    sketches: _Sketches
    row: int


class _Made(NamedTuple):
    """A column of a table: the field of a row that it is made of, and how."""

    field: str
    make: _Maker


class _Repeated:
    """The columns of one table. Steps mostly repeat each other: what is as in the step before is not made again."""

    def __init__(self, fields: tuple[str, ...], makers: Mapping[str, _Made], sort: bool = False) -> None:
        self._makers = {name: (fields.index(column.field), column.make) for name, column in makers.items()}
        self._width = len(fields)
        self._sort = sort  # by the first number
        # By the place of the batch in its step: its rows, as they came and as columns of numbers, and what was made of them.
        self._last: dict[int, tuple[Sequence[int], _Numbers, dict[str, Any]]] = {}

    def of(self, rows: Sequence[int], part: int) -> dict[str, Any]:
        """Return the columns of rows that follow each other; they belong to later batches as well."""
        part = min(part, _PARTS)
        before, last, columns = self._last.get(part, ((), np.empty((self._width, 0), np.int32), {}))
        # To compare takes a third of the time that it takes to make an array of them. The size, because a thread that was
        # about to add to the rows when they were handed over may have done so since.
        if columns and len(rows) == last.size and rows == before:
            return columns
        numbers = _array(rows, self._width)
        if self._sort:
            numbers = numbers.take(np.argsort(numbers[0], kind="stable"), axis=1)
        same = np.zeros(self._width, bool)
        if columns and numbers.shape == last.shape:
            same = (numbers == last).all(axis=1)
        made = {name: columns[name] if same[at] else make(numbers[at]) for name, (at, make) in self._makers.items()}
        self._last[part] = rows, numbers, made
        return made


class Tables:
    """Makes columns of what was buffered, batch after batch; in the writer's thread alone."""

    def __init__(self, strings: Strings, shapes: Shapes) -> None:
        text = strings.column
        makers = {Column.NUMBER: pa.array, Column.NULLABLE: nullable, Column.TEXT: text, Column.FLAG: _flags}
        self._calls = _Repeated(CallRow._fields, _by_kind(CallRow, makers), sort=True)
        self._slots = _Repeated(SlotRow._fields, _by_kind(SlotRow, makers))
        self._tensors = _Repeated(
            TensorRow._fields,
            {
                "tensor": _Made("tensor", np.asarray),
                "dtype": _Made("dtype", text),
                "shape": _Made("shape", shapes.column),
                "elements": _Made("shape", shapes.elements),
                "device": _Made("device", text),
                "row": _Made("row", np.asarray),
                "placement": _Made("placement", text),
            },
        )

    def calls(self, step: int, part: int, rows: Sequence[int]) -> Mapping[str, Any]:
        """Return the calls of a batch, the part-th of its step, in the order in which they began."""
        return _of_step(step, self._calls.of(rows, part), "order")

    def slots(self, step: int, part: int, rows: Sequence[int]) -> Mapping[str, Any]:
        """Return the slots of a batch."""
        return _of_step(step, self._slots.of(rows, part), "call")

    def tensors(
        self,
        step: int,
        part: int,
        rows: Sequence[int],
        prints: Fingerprints | None,
        again: Sequence[Lasting] = (),
        lasting: Sequence[tuple[int, Lasting]] = (),
    ) -> Mapping[str, Any]:
        """Return the tensors of a batch; `lasting` takes the fingerprints that later steps may refer to."""
        columns = _of_step(step, self._tensors.of(rows, part), "tensor")
        row = columns.pop("row")
        if prints is None:
            return columns
        words, sketches = _fingerprints(row, prints, again)
        if lasting:
            _remember(columns["tensor"], words, sketches, lasting)
        for at, (name, dtype) in enumerate(_WORDS):
            columns[name] = words[:, at].view(dtype)
        columns["sketch"] = sketches
        return columns


def _by_kind(row: type[NamedTuple], makers: Mapping[Column, _Maker]) -> dict[str, _Made]:
    """Return the columns of rows whose fields are annotated with their kinds."""
    hints = get_type_hints(row, include_extras=True)
    return {
        name: _Made(name, makers[kind]) for name, hint in hints.items() for kind in get_args(hint) if kind in makers
    }


def _flags(numbers: _Numbers) -> pa.Array:
    return pa.array(numbers.astype(bool), mask=numbers < 0 if len(numbers) and numbers.min() < 0 else None)


def _of_step(step: int, columns: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {"step": np.full(len(columns[key]), step, np.int32), **columns}


def _fingerprints(row: _Numbers, prints: Fingerprints, again: Sequence[Lasting]) -> tuple[_Words, _Sketches]:
    """Return the rows' fingerprints: of those measured in this batch, and of those measured in an earlier step."""
    measured, sketches = np.empty((len(prints), len(_WORDS)), np.int64), prints.sketch
    for at, (name, _) in enumerate(_WORDS):
        measured[:, at] = getattr(prints, name).view(np.int64)
    if not again:
        return measured.take(row, axis=0), sketches.take(row, axis=0)
    if not len(prints):
        measured, sketches = np.zeros((1, len(_WORDS)), np.int64), np.zeros((1, sketches.shape[1]))
    # What is not here takes any row, and another's values below.
    words, found = measured.take(row, axis=0, mode="clip"), sketches.take(row, axis=0, mode="clip")
    places = np.flatnonzero(row < 0)
    chosen = [again[at] for at in (AGAIN - row[places]).tolist()]
    rows = np.array([one.row for one in chosen])
    sources = {id(one.words): one for one in chosen}  # most come from one optimizer's step
    source = np.array([id(one.words) for one in chosen]) if len(sources) > 1 else None
    for address, one in sources.items():
        of = slice(None) if source is None else source == address
        words[places[of]] = one.words.take(rows[of], axis=0)
        found[places[of]] = one.sketches.take(rows[of], axis=0)
    return words, found


def _remember(numbers: _Numbers, words: _Words, sketches: _Sketches, lasting: Sequence[tuple[int, Lasting]]) -> None:
    """Give the fingerprints that later steps may refer to, and no more than those, a place that outlives the batch."""
    places = np.empty(numbers.max() + 1, np.intp)
    places[numbers] = np.arange(len(numbers))
    rows = places[[number for number, _ in lasting]]
    words, sketches = words.take(rows, axis=0), sketches.take(rows, axis=0)
    for row, (_, one) in enumerate(lasting):
        one.words, one.sketches, one.row = words, sketches, row


def _array(rows: Sequence[int], width: int) -> _Numbers:
    """Return the columns of rows that follow each other."""
    # The fastest way from Python's numbers to an array, and all of it with Python's lock held.
    numbers = np.frombuffer(struct.pack(f"={len(rows)}i", *rows), np.int32)
    return np.ascontiguousarray(numbers.reshape(-1, width).T)
