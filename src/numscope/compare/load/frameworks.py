"""Translates the tables of a Paddle run into torch's terms, so that runs of the two frameworks can be compared.

Values are not changed, with one exception: Paddle stores the weight of a Linear as [in, out], and it is transposed. Where
its data was kept, it is measured again; otherwise its statistics stay, because the order of the elements does not change
them, and its hash and sketch become unknown. Arguments that both frameworks have get torch's names (paddle_words.py);
all others are dropped, and so are the calls that run inside a function that both frameworks have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from numscope.compare.load import paddle_words
from numscope.core.operators import canonical, canonical_of_paddle
from numscope.store.reader import Run, StepTables
from numscope.store.schema import SKETCH, SLOTS, TENSORS, TableRow

# BatchNorm2D is BatchNorm2d, and so on for every class whose name counts dimensions.
_DIMENSIONS = re.compile(r"(?<=[1-3])D$")
CLASSES = {
    "LayerList": "ModuleList",
    "LayerDict": "ModuleDict",
    "Silu": "SiLU",
    "Swish": "SiLU",
    "Hardswish": "Hardswish",
}
# Paddle's names for the running statistics of a normalisation layer.
SLOT_NAMES = {"_mean": "running_mean", "_variance": "running_var"}
# Layers whose weight Paddle stores transposed.
TRANSPOSED = {
    "Linear",
    "ColumnParallelLinear",
    "RowParallelLinear",
    "ColumnSequenceParallelLinear",
    "RowSequenceParallelLinear",
}


def differ(run: Run, other: Run) -> bool:
    """Tell whether two runs are of different frameworks, where both manifests name one."""
    framework, other_framework = run.manifest.get("framework"), other.manifest.get("framework")
    return bool(framework and other_framework) and framework != other_framework


def in_common(run: Run, other: Run, step: int, rank: int) -> StepTables:
    """Return the tables of one step of a run in the terms that it shares with a run of another framework."""
    is_paddle = run.manifest.get("framework") == "paddle"
    theirs = _in_words(other.step_tables(step, rank), not is_paddle)
    tables = _in_words(run.step_tables(step, rank), is_paddle)
    tables = _without_inner_calls(tables, {_operator(spoken) for spoken in theirs.calls["spoken"].to_pylist()})
    return _from_paddle(run, tables, rank, _linear_weights(theirs)) if is_paddle else tables


def _in_words(tables: StepTables, is_paddle: bool) -> StepTables:
    """Add the column `spoken`, call names with torch's operators, and keep only arguments that both frameworks have."""
    calls, ops, arguments = tables.calls, [], []
    rows = zip(*(calls[column].to_pylist() for column in ("name", "kind", "arguments")))
    for name, kind, text in rows:
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
    calls = calls.set_column(calls.schema.get_field_index("arguments"), "arguments", pa.array(arguments, pa.string()))
    return StepTables(calls.append_column("spoken", pa.array(ops, pa.string())), tables.slots, tables.tensors)


def _operator(spoken: str) -> str:
    _, op, *_ = spoken.split(".")
    return canonical(op)


def _without_inner_calls(tables: StepTables, shared_operators: set[str]) -> StepTables:
    """Return the tables without the calls inside functions that the other framework's run calls too."""
    inner: set[int] = set()
    shared: set[int] = set()
    calls = tables.calls.select(["order", "parent", "forward", "kind", "spoken"]).to_pylist()
    for call in sorted(calls, key=lambda call: call["order"]):
        if call["parent"] in shared or call["parent"] in inner or call["forward"] in inner:
            inner.add(call["order"])
        elif call["kind"] == "api" and _operator(call["spoken"]) in shared_operators:
            shared.add(call["order"])
    if not inner:
        return tables
    kept = [call["order"] not in inner for call in tables.calls.select(["order"]).to_pylist()]
    slots = [number not in inner for number in tables.slots["call"].to_pylist()]
    return StepTables(tables.calls.filter(pa.array(kept)), tables.slots.filter(pa.array(slots)), tables.tensors)


def class_name(name: str | None) -> str | None:
    """Return torch's name of a Paddle layer's class."""
    return None if name is None else CLASSES.get(name, _DIMENSIONS.sub("d", name))


def slot_name(slot: str) -> str:
    """Return torch's name of a Paddle slot."""
    head, dot, last = slot.rpartition(".")
    return f"{head}{dot}{SLOT_NAMES.get(last, last)}"


def _linear_weights(tables: StepTables) -> dict[str, list[int]]:
    """Return the shape of the weight of each linear layer that was called, by the weight's name."""
    rows = tables.calls.select(["order", "kind", "module", "module_class"]).to_pylist()
    layers = {
        row["order"]: f"{row['module'] or ''}.weight".lstrip(".")
        for row in rows
        if row["kind"] == "module" and row["module_class"] in TRANSPOSED
    }
    shapes = dict(zip(tables.tensors["tensor"].to_pylist(), tables.tensors["shape"].to_pylist()))
    slots = tables.slots.select(["call", "slot", "tensor"]).to_pylist()
    return {
        layers[row["call"]]: shapes.get(row["tensor"]) or []
        for row in slots
        if row["slot"] == "parameters.weight" and row["call"] in layers
    }


def _from_paddle(run: Run, tables: StepTables, rank: int, torch_weights: dict[str, list[int]]) -> StepTables:
    """Rename a Paddle run's classes and slots, and transpose the weights of its linear layers."""
    calls = tables.calls
    classes = [class_name(name) for name in calls["module_class"].to_pylist()]
    calls = calls.set_column(
        calls.schema.get_field_index("module_class"), "module_class", pa.array(classes, pa.string())
    )
    rows = tables.slots.to_pylist()
    transposed = _transposed_slots(StepTables(calls, tables.slots, tables.tensors), rows, torch_weights)
    numbers = {row["tensor"] for row, flip in zip(rows, transposed) if flip and row["tensor"] is not None}
    new_numbers, new_tensors = _transpose(run, rank, tables.tensors, numbers)
    for row, flip in zip(rows, transposed):
        row["slot"] = slot_name(row["slot"])
        if flip and row["tensor"] in new_numbers:
            row["tensor"] = new_numbers[row["tensor"]]
    return StepTables(calls, pa.Table.from_pylist(rows, SLOTS), pa.concat_tables([tables.tensors, new_tensors]))


def _transposed_slots(tables: StepTables, slots: list[TableRow], torch_weights: dict[str, list[int]]) -> list[bool]:
    """Tell for each slot whether it shows a weight that torch stores transposed.

    `torch_weights` are the weights of torch's linear layers: a Paddle layer may use such a weight without being called.
    """
    by_order = {call["order"]: call for call in tables.calls.to_pylist()}
    shapes = dict(zip(tables.tensors["tensor"].to_pylist(), tables.tensors["shape"].to_pylist()))
    own = set(_linear_weights(tables))
    held = {
        label
        for row in slots
        if (label := _after_dot(row["slot"])) in torch_weights
        and (shapes.get(row["tensor"]) or [])[::-1] == torch_weights[label]
    }
    return [_is_transposed(by_order.get(row["call"]), row["slot"], own | held) for row in slots]


def _after_dot(slot: str) -> str:
    _, _, label = slot.partition(".")
    return label


def _is_transposed(call: TableRow | None, slot: str, weights: Iterable[str]) -> bool:
    if call is None:
        return False
    group, _, tail = slot.partition(".")
    if call["kind"] == "module":
        return call["module_class"] in TRANSPOSED and group in ("parameters", "parameters_grad") and tail == "weight"
    if call["kind"] == "optimizer":
        return group in ("parameters", "parameters_grad", "output") and tail in weights
    if call["name"].startswith("Functional.linear."):
        return slot == ("output.1" if call["phase"] == "backward" else "input.1")
    return False


def _transpose(run: Run, rank: int, tensors: pa.Table, numbers: set[int]) -> tuple[dict[int, int], pa.Table]:
    """Transpose the 2-D tensors among these numbers; return the number of each one's transpose, and the rows of those."""
    from numscope.fingerprint.numpy_form import NumpyBatch  # few comparisons need these two
    from numscope.store.batch import record_batch

    rows = [row for row in tensors.to_pylist() if row["tensor"] in numbers and len(row["shape"] or ()) == 2]
    if not rows:
        return {}, TENSORS.empty_table()
    first = 1 + max(number for number in tensors["tensor"].to_pylist() if number is not None)
    transposes = {row["tensor"]: number for number, row in enumerate(rows, first)}
    measure = NumpyBatch()
    for row in rows:
        kept = row["shard"] is not None and not row["sampled"]
        array = run.array(rank, row["shard"], row["key"], row["dtype"], tuple(row["shape"])) if kept else np.zeros(0)
        row["measured"] = measure.add(np.ascontiguousarray(array.T)) if kept else None
    prints = measure.collect()
    sketches = np.full((len(rows), SKETCH), np.nan)
    for index, row in enumerate(rows):
        at = row.pop("measured")
        row.update(tensor=transposes[row["tensor"]], shape=row["shape"][::-1], shard=None, key=None, sampled=None)
        row["hash"] = None if at is None else int(prints.hash[at])
        if at is not None:
            sketches[index] = prints.sketch[at]
    names = [name for name in TENSORS.names if name not in ("sketch", "sketch_low")]
    columns: dict[str, object] = {name: [row[name] for row in rows] for name in names}
    return transposes, pa.Table.from_batches([record_batch("tensors", {**columns, "sketch": sketches})])
