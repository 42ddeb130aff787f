"""The pairs of tensors that differ most, grouped: one tensor shows in many slots, and one fault in many tensors.

largest differences                           relative    cosine   max abs  verdict
Functional.layer_norm.5.backward.output.0    0.000626         1  2.34e-07  inherited
    blocks.2.norm2, backward, step 1: the worst of 6
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from numscope.compare.comparison import Comparison
from numscope.compare.parts.rows import Rows
from numscope.store.schema import TableRow


@dataclass(frozen=True)
class Group:
    """The pairs of one module, phase, step and verdict; the worst of them stands for all."""

    worst: TableRow
    count: int
    place: str


@dataclass(frozen=True)
class _Seen:
    error: float
    row: int
    count: int


def groups(comparison: Comparison, most: int) -> list[Group]:
    """Return the groups with the largest errors, the worst first."""
    places = _Places(comparison.call_rows)
    found: dict[tuple[str, str, int, str], _Seen] = {}
    begin = 0
    for part in comparison.pair_rows.batches(["verdict", "relative_l2", "pair", "step", "slot"]):
        differing = pc.fill_null(pc.not_equal(part["verdict"], "identical"), False).to_numpy()
        rows = np.flatnonzero(differing)
        error = np.nan_to_num(part["relative_l2"].to_numpy().astype(float)[rows], nan=-1.0, posinf=np.inf)
        order = np.argsort(-error, kind="stable")
        rows, error = rows[order], error[order]
        taken = part.take(pa.array(rows))
        keys = zip(*places.of(taken), taken["step"].to_pylist(), taken["verdict"].to_pylist())
        for key, row, size in zip(keys, rows.tolist(), error.tolist()):
            seen = found.get(key)
            if seen is None:
                found[key] = _Seen(size, row + begin, 1)
            else:
                error_, row_ = (seen.error, seen.row) if seen.error >= size else (size, row + begin)
                found[key] = _Seen(error_, row_, seen.count + 1)
        begin += part.num_rows
    worst = sorted(found.items(), key=lambda item: -item[1].error)[:most]
    rows = comparison.pair_rows.take([seen.row for _, seen in worst]).to_pylist()
    return [Group(row, seen.count, _said(key)) for row, (key, seen) in zip(rows, worst)]


def _said(key: tuple[str, str, int, str]) -> str:
    module, phase, step, _ = key
    return ", ".join(part for part in (module, phase, f"step {step}") if part)


class _Places:
    """The module and the phase of the call of each pair."""

    def __init__(self, calls: Rows) -> None:
        self._calls = calls

    def of(self, pairs: pa.Table) -> tuple[list[str], list[str]]:
        """Return modules and phases; an optimizer's are those of the parameters that it steps."""
        rows = pairs["pair"].to_numpy()
        begin = int(rows.min(initial=self._calls.num_rows))
        calls = self._calls.slice(begin, int(rows.max(initial=begin - 1)) + 1 - begin, ["module", "phase"])
        here = calls.take(pa.array(rows - begin))
        modules, phases, slots = (column.to_pylist() for column in (here["module"], here["phase"], pairs["slot"]))
        return [module or _owner(slot) for module, slot in zip(modules, slots)], phases


def _owner(slot: str) -> str:
    """Return the module of the parameter that an optimizer's slot names: `output.blocks.2.down.weight`."""
    path = slot.partition(".")[2].rpartition(".")[0]
    return "" if path.isdecimal() else path
