"""Paddle's run as torch would have recorded it: the rules by which two frameworks' names and layouts belong together.

Applied where one side is Paddle's and the other is not. Values are not touched, except that a Linear's weight, which
Paddle holds as [in, out], is turned: from its data where that was kept; otherwise its statistics stay, which no order of
elements changes, and its hash and sketch become unknown. Arguments are put into torch's words where both have them, and
left out elsewhere (paddle_words.py); what runs inside a function that both have is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from numscope.compare.load import paddle_words
from numscope.core.operators import canonical, canonical_of_paddle
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


def in_common(run: Run, other: Run, step: int, rank: int) -> StepTables:
    """Return the tables of a step of a run as they compare with another framework's."""
    is_paddle = run.manifest.get("framework") == "paddle"
    theirs = _in_words(other.step_tables(step, rank), not is_paddle)
    tables = _in_words(run.step_tables(step, rank), is_paddle)
    tables = _without_inner_calls(tables, {_operator(spoken) for spoken in theirs.calls["spoken"].to_pylist()})
    return _from_paddle(run, tables, rank, _linear_weights(theirs)) if is_paddle else tables


def _in_words(tables: StepTables, is_paddle: bool) -> StepTables:
    """Return the tables with torch's operators in a column of their own, and with the arguments that both frameworks have."""
    calls, ops, arguments = tables.calls, [], []
    kinds, given = calls["kind"].to_pylist(), calls["arguments"].to_pylist()
    for name, kind, text in zip(calls["name"].to_pylist(), kinds, given):
        head, _, rest = name.partition(".")
        op, _, tail = rest.partition(".")
        if kind == "optimizer":
            op = paddle_words.OPTIMIZERS.get(op, op) if is_paddle else op
            arguments.append(paddle_words.settings(text, is_paddle))
        elif kind == "api":
            op = canonical_of_paddle(op) if is_paddle else op
            arguments.append(paddle_words.arguments(text, canonical(op), is_paddle))
        else:
            op, tail = rest, ""
            arguments.append(None)
        ops.append(".".join(part for part in (head, op, tail) if part))
    place = calls.schema.get_field_index("arguments")
    calls = calls.set_column(place, "arguments", pa.array(arguments, pa.string()))
    return StepTables(calls.append_column("spoken", pa.array(ops, pa.string())), tables.slots, tables.tensors)


def _operator(spoken: str) -> str:
    return canonical(spoken.split(".")[1])


def _without_inner_calls(tables: StepTables, theirs: set[str]) -> StepTables:
    """Return the tables without what runs inside functions that the other framework's run has called, too."""
    inner: set[int] = set()
    ones: set[int] = set()
    calls = tables.calls.select(["order", "parent", "forward", "kind", "spoken"]).to_pylist()
    for call in sorted(calls, key=lambda call: call["order"]):
        if call["parent"] in ones or call["parent"] in inner or call["forward"] in inner:
            inner.add(call["order"])
        elif call["kind"] == "api" and _operator(call["spoken"]) in theirs:
            ones.add(call["order"])
    if not inner:
        return tables
    kept = [call["order"] not in inner for call in tables.calls.select(["order"]).to_pylist()]
    slots = [number not in inner for number in tables.slots["call"].to_pylist()]
    return StepTables(tables.calls.filter(pa.array(kept)), tables.slots.filter(pa.array(slots)), tables.tensors)


def class_name(name: str | None) -> str | None:
    """Return what torch calls a Paddle layer's class."""
    return None if name is None else CLASSES.get(name, _DIMENSIONS.sub("d", name))


def slot_name(slot: str) -> str:
    """Return what torch calls a Paddle slot."""
    head, dot, last = slot.rpartition(".")
    return f"{head}{dot}{SLOTS_NAMES.get(last, last)}"


def _linear_weights(tables: StepTables) -> dict[str, list[int]]:
    """Return the weights of all linear layers that were called, by name, and their shapes."""
    rows = tables.calls.select(["order", "kind", "module", "module_class"]).to_pylist()
    layers = {
        row["order"]: f"{row['module'] or ''}.weight".lstrip(".")
        for row in rows
        if row["kind"] == "module" and row["module_class"] in TURNED
    }
    shapes = dict(zip(tables.tensors["tensor"].to_pylist(), tables.tensors["shape"].to_pylist()))
    slots = tables.slots.select(["call", "slot", "tensor"]).to_pylist()
    return {
        layers[row["call"]]: shapes.get(row["tensor"]) or []
        for row in slots
        if row["slot"] == "parameters.weight" and row["call"] in layers
    }


def _from_paddle(run: Run, tables: StepTables, rank: int, theirs: dict[str, list[int]]) -> StepTables:
    calls = tables.calls
    classes = [class_name(name) for name in calls["module_class"].to_pylist()]
    calls = calls.set_column(
        calls.schema.get_field_index("module_class"), "module_class", pa.array(classes, pa.string())
    )
    rows = tables.slots.to_pylist()
    turned = _turned(StepTables(calls, tables.slots, tables.tensors), rows, theirs)
    numbers = {row["tensor"] for row, turn in zip(rows, turned) if turn and row["tensor"] is not None}
    fresh, more = _turn(run, rank, tables.tensors, numbers)
    for row, turn in zip(rows, turned):
        row["slot"] = slot_name(row["slot"])
        if turn and row["tensor"] in fresh:
            row["tensor"] = fresh[row["tensor"]]
    return StepTables(calls, pa.Table.from_pylist(rows, SLOTS), pa.concat_tables([tables.tensors, more]))


def _turned(tables: StepTables, slots: list[dict[str, Any]], theirs: dict[str, list[int]]) -> list[bool]:
    """Tell for each slot whether it shows a weight that torch holds the other way round; `theirs` are weights of torch's linear
    layers, which a Paddle layer may hold and use without being called."""
    by_order = {call["order"]: call for call in tables.calls.to_pylist()}
    shapes = dict(zip(tables.tensors["tensor"].to_pylist(), tables.tensors["shape"].to_pylist()))
    own = set(_linear_weights(tables))
    held = {
        label
        for row in slots
        if (label := row["slot"].partition(".")[2]) in theirs
        and (shapes.get(row["tensor"]) or [])[::-1] == theirs[label]
    }
    return [_is_turned(by_order.get(row["call"]), row["slot"], own | held) for row in slots]


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
