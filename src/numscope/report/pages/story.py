"""The story: the error of each call in the order of calls, thinned out to what a screen can show.

Above `limit` rows the order is cut into stretches, and each keeps its largest and its smallest error, so that no peak is
lost. Origins and unmatched calls are always kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numscope.report.pages.frames import Column, encode
from numscope.report.pages.tables import Filter, IndexedTable, RowNumbers, take

LIMIT = 120_000


@dataclass(frozen=True)
class Measure:
    """The columns that are drawn: the value of a call's inputs, of its outputs, and the expected value."""

    input: str
    output: str
    expected: str


ERRORS = Measure("error_in", "error_out", "expected")
MAGNITUDES = Measure("magnitude_in", "peak", "largest")


def frame(table: IndexedTable, measure: Measure, where: Filter, start: int, end: int, limit: int = LIMIT) -> bytes:
    """Return the points between two positions in the order of the filtered rows; `at` is a point's position."""
    every = in_order_of_ending(table, table.rows(where))
    at = chosen(table, measure.output, every[max(start, 0) : end if end > 0 else None], limit) + max(start, 0)
    rows = every[at]
    columns = [Column("at", at.astype("i4")), Column("row", rows.astype("i4"))]
    for name, source in (("in", measure.input), ("out", measure.output), ("expected", measure.expected)):
        column = take(name, table.column(source), rows)
        columns.append(Column(name, _single(column.values), column.valid))
    columns += [take(name, table.column(name), rows) for name in ("step", "rank", "verdict", "phase")]
    return encode(columns, {"total": len(every)})


def in_order_of_ending(table: IndexedTable, rows: RowNumbers) -> RowNumbers:
    """Return rows by when their calls end: a module's error is that of its last call, and stands right of its cause."""
    if "parent" not in table.names:
        return rows
    parent = table.column("parent")
    inside = np.flatnonzero(parent.values >= 0 if parent.valid is None else parent.valid & (parent.values >= 0))
    around = parent.values[inside]
    ends = np.arange(len(table))
    while True:  # as often as calls lie within calls
        before = ends.copy()
        np.maximum.at(ends, around, before[inside])
        if np.array_equal(before, ends):
            break
    return rows[np.lexsort((-rows, ends[rows]))]


def _single(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return float32 for drawing; finite values stay finite."""
    edge = float(np.finfo(np.float32).max)
    return np.where(np.isfinite(values), np.clip(values, -edge, edge), values).astype(np.float32)


def chosen(table: IndexedTable, measure: str, rows: RowNumbers, limit: int) -> RowNumbers:
    """Return the positions in `rows` to draw."""
    if len(rows) <= limit:
        return np.arange(len(rows))
    column = table.column(measure)
    error = column.values[rows].astype(np.float64)
    if column.valid is not None:
        error = np.where(column.valid[rows], error, -1.0)
    error = np.where(np.isnan(error), np.inf, error)
    size = -(-len(rows) // max(limit // 2, 1))
    padded = np.concatenate([error, np.full(-len(error) % size, -2.0)]).reshape(-1, size)
    base = np.arange(len(padded)) * size
    picks = [base + padded.argmax(axis=1), base + np.where(padded < 0, np.inf, padded).argmin(axis=1)]
    verdict = table.column("verdict")
    if verdict.words is not None:
        loud = [code for code, word in enumerate(verdict.words.to_pylist()) if word in ("origin", "unmatched")]
        always = np.flatnonzero(np.isin(verdict.values[rows], loud))
        picks.append(always[:: max(1, len(always) // limit)])
    keep = np.unique(np.concatenate(picks))
    return keep[keep < len(rows)]
