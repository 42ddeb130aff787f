"""Paddle's run as torch would have recorded it: the rules by which two frameworks' names and layouts belong together.

Applied where one side is Paddle's and the other is not. Values are not touched, except that a Linear's weight, which
Paddle holds as [in, out], is turned: from its data where that was kept; otherwise its statistics stay, which no order of
elements changes, and its hash and sketch become unknown. Arguments are left out on both sides, as their names and
defaults differ between the frameworks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from numscope.store.reader import Run, StepTables
from numscope.store.schema import SLOTS, TENSORS

# Classes of modules: BatchNorm2D is BatchNorm2d, and so with all that count their dimensions.
_DIMENSIONS = re.compile(r"(?<=[1-3])D$")
CLASSES = {
    "LayerList": "ModuleList",
    "LayerDict": "ModuleDict",
    "Silu": "SiLU",
    "Swish": "SiLU",
    "Hardswish": "Hardswish",
}
# A norm's statistics.
SLOTS_NAMES = {"_mean": "running_mean", "_variance": "running_var"}
# Layers whose weight is held the other way round.
TURNED = {
    "Linear", "ColumnParallelLinear", "RowParallelLinear", "ColumnSequenceParallelLinear", "RowSequenceParallelLinear",
}  # fmt: skip


def differ(run: Run, other: Run) -> bool:
    """Tell whether two runs are of different frameworks, both known."""
    mine, theirs = run.manifest.get("framework"), other.manifest.get("framework")
    return bool(mine and theirs) and mine != theirs


def in_common(run: Run, other: Run, tables: StepTables, rank: int) -> StepTables:
    """Return the tables of a run as they compare with another framework's."""
    calls = tables.calls.set_column(
        tables.calls.schema.get_field_index("arguments"), "arguments", pa.nulls(tables.calls.num_rows, pa.string())
    )
    tables = StepTables(calls, tables.slots, tables.tensors)
    return _from_paddle(run, tables, rank) if run.manifest.get("framework") == "paddle" else tables


def class_name(name: str | None) -> str | None:
    """Return what torch calls a Paddle layer's class."""
    return None if name is None else CLASSES.get(name, _DIMENSIONS.sub("d", name))


def slot_name(slot: str) -> str:
    """Return what torch calls a Paddle slot."""
    head, dot, last = slot.rpartition(".")
    return f"{head}{dot}{SLOTS_NAMES.get(last, last)}"


def _from_paddle(run: Run, tables: StepTables, rank: int) -> StepTables:
    calls = tables.calls
    classes = [class_name(name) for name in calls["module_class"].to_pylist()]
    calls = calls.set_column(
        calls.schema.get_field_index("module_class"), "module_class", pa.array(classes, pa.string())
    )
    rows = tables.slots.to_pylist()
    turned = _turned(calls.to_pylist(), rows)
    numbers = {row["tensor"] for row, turn in zip(rows, turned) if turn and row["tensor"] is not None}
    fresh, more = _turn(run, rank, tables.tensors, numbers)
    for row, turn in zip(rows, turned):
        row["slot"] = slot_name(row["slot"])
        if turn and row["tensor"] in fresh:
            row["tensor"] = fresh[row["tensor"]]
    return StepTables(calls, pa.Table.from_pylist(rows, SLOTS), pa.concat_tables([tables.tensors, more]))


def _turned(calls: list[dict[str, Any]], slots: list[dict[str, Any]]) -> list[bool]:
    """Tell for each slot whether it shows a weight that torch holds the other way round."""
    by_order = {call["order"]: call for call in calls}
    weights = {
        f"{call['module']}.weight" if call["module"] else "weight"
        for call in calls
        if call["kind"] == "module" and call["module_class"] in TURNED
    }
    return [_is_turned(by_order.get(row["call"]), row["slot"], weights) for row in slots]


def _is_turned(call: dict[str, Any] | None, slot: str, weights: Iterable[str]) -> bool:
    if call is None:
        return False
    group, _, tail = slot.partition(".")
    if call["kind"] == "module":
        return call["module_class"] in TURNED and group in ("parameters", "parameters_grad") and tail == "weight"
    if call["kind"] == "optimizer":
        return group in ("parameters", "parameters_grad", "output") and tail in weights
    if call["name"].startswith("Functional.linear."):
        return slot == ("output.1" if call["phase"] == "backward" else "input.1")
    return False


def _turn(run: Run, rank: int, tensors: pa.Table, numbers: set[int]) -> tuple[dict[int, int], pa.Table]:
    """Return a new number for each of these tensors, and the rows of the turned ones."""
    from numscope.fingerprint.numpy_form import NumpyBatch  # most comparisons need neither
    from numscope.store.batch import record_batch

    rows = [row for row in tensors.to_pylist() if row["tensor"] in numbers and len(row["shape"] or ()) == 2]
    if not rows:
        return {}, TENSORS.empty_table()
    first = 1 + max(number for number in tensors["tensor"].to_pylist() if number is not None)
    fresh = {row["tensor"]: first + place for place, row in enumerate(rows)}
    measure = NumpyBatch()
    for row in rows:
        kept = row["shard"] is not None and not row["sampled"]
        array = run.array(rank, row["shard"], row["key"], row["dtype"], tuple(row["shape"])) if kept else np.zeros(0)
        row["measured"] = measure.add(np.ascontiguousarray(array.T)) if kept else None
    prints = measure.collect()
    sketches = np.full((len(rows), prints.sketch.shape[1]), np.nan)
    for place, row in enumerate(rows):
        at = row.pop("measured")
        row.update(tensor=fresh[row["tensor"]], shape=row["shape"][::-1], shard=None, key=None, sampled=None)
        row["hash"] = None if at is None else int(prints.hash[at])
        if at is not None:
            sketches[place] = prints.sketch[at]
    names = [name for name in TENSORS.names if name not in ("sketch", "sketch_low")]
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in names}
    return fresh, pa.Table.from_batches([record_batch("tensors", {**columns, "sketch": sketches})])
