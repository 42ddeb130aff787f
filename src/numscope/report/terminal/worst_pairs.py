"""The pairs of tensors that differ most, grouped: one tensor shows in many slots, and one fault in many tensors.

largest differences                           relative    cosine   max abs  verdict
Functional.layer_norm.5.backward.output.0    0.000626         1  2.34e-07  inherited
    blocks.2.norm2, backward, step 1: the worst of 6
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from numscope.compare.comparison import Comparison
from numscope.compare.load.side import Ints
from numscope.compare.parts.rows import Rows
from numscope.store.schema import TableRow


@dataclass(frozen=True)
class Group:
    """The pairs of one module, phase, step and verdict; the worst of them stands for all."""

    worst: TableRow
    count: int
    place: str


@dataclass(frozen=True)
class _Key:
    """The place and the verdict that the pairs of a group share."""

    module: str
    phase: str
    step: int
    verdict: str

    def said(self) -> str:
        """Return the place of the group."""
        return ", ".join(part for part in (self.module, self.phase, f"step {self.step}") if part)


@dataclass(frozen=True)
class _Seen:
    error: float
    row: int
    count: int

    def __add__(self, other: _Seen) -> _Seen:
        worst = self if self.error >= other.error else other
        return _Seen(worst.error, worst.row, self.count + other.count)


def groups(comparison: Comparison, most: int) -> list[Group]:
    """Return the groups with the largest errors, the worst first."""
    places = _Places(comparison.call_rows)
    found: dict[_Key, _Seen] = {}
    begin = 0
    for part in comparison.pair_rows.batches(["verdict", "relative_l2", "pair", "step", "slot"]):
        differing = pc.fill_null(pc.not_equal(part["verdict"], "identical"), False).to_numpy()
        rows = np.flatnonzero(differing)
        error = np.nan_to_num(part["relative_l2"].to_numpy().astype(float)[rows], nan=-1.0, posinf=np.inf)
        order = np.argsort(-error, kind="stable")
        rows, error = rows[order], error[order]
        taken = part.take(pa.array(rows))
        columns = [*places.of(taken), _Column.of(taken["step"]), _Column.of(taken["verdict"])]
        codes = np.zeros(len(rows), np.int64)
        for column in columns:
            codes = codes * max(len(column.words), 1) + column.codes
        _, first, count = np.unique(codes, return_index=True, return_counts=True)  # the first of a group is its worst
        for place in np.argsort(first).tolist():
            row = int(first[place])
            key = _Key(*(column.words[column.codes[row]] for column in columns))
            seen = _Seen(float(error[row]), int(rows[row]) + begin, int(count[place]))
            found[key] = found[key] + seen if key in found else seen
        begin += part.num_rows
    worst = sorted(found.items(), key=lambda item: -item[1].error)[:most]
    rows = comparison.pair_rows.take([seen.row for _, seen in worst]).to_pylist()
    return [Group(row, seen.count, key.said()) for row, (key, seen) in zip(rows, worst)]


@dataclass(frozen=True)
class _Column:
    """A column as numbers of its distinct values."""

    codes: Ints
    words: list[Any]

    @classmethod
    def of(cls, values: pa.Array | pa.ChunkedArray) -> _Column:
        """Return a column of a table."""
        whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        encoded = whole if isinstance(whole, pa.DictionaryArray) else whole.dictionary_encode()
        return cls(encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist())


class _Places:
    """The module and the phase of the call of each pair."""

    def __init__(self, calls: Rows) -> None:
        self._calls = calls

    def of(self, pairs: pa.Table) -> tuple[_Column, _Column]:
        """Return modules and phases; an optimizer's are those of the parameters that it steps."""
        rows = pairs["pair"].to_numpy()
        begin = int(rows.min(initial=self._calls.num_rows))
        calls = self._calls.slice(begin, int(rows.max(initial=begin - 1)) + 1 - begin, ["module", "phase"])
        here = calls.take(pa.array(rows - begin))
        module, phase = (_Column.of(pc.fill_null(here[name], "")) for name in ("module", "phase"))
        slots = _Column.of(pairs["slot"])
        words = [*module.words, *map(_owner, slots.words)]
        without = np.array([not word for word in module.words], np.bool_)[module.codes]
        codes = np.where(without, len(module.words) + slots.codes, module.codes)
        distinct = {word: number for number, word in enumerate(dict.fromkeys(words))}
        return _Column(np.array([distinct[word] for word in words])[codes], list(distinct)), phase


def _owner(slot: str) -> str:
    """Return the module of the parameter that an optimizer's slot names: `output.blocks.2.down.weight`."""
    path = slot.partition(".")[2].rpartition(".")[0]
    return "" if path.isdecimal() else path
