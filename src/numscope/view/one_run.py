"""One run without a reference: the findings of its check, and the headroom of each call below its dtype's limit."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from numscope.check.checking import Check
from numscope.core.dtypes import FLOATS
from numscope.core.report import plain
from numscope.store.reader import Run
from numscope.store.schema import CALLS, SLOTS, TENSORS, TableRow

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
_CHAIN = 200  # names of the chain that a page lists


def largest(dtype: str) -> float:
    """Return the largest finite number of a dtype, NaN where it has no such limit."""
    form = FLOATS.get(dtype)
    return form.largest if form is not None else float("nan")


def tables(run: Run, check: Check) -> tuple[pa.Table, pa.Table]:
    """Return (calls, tensors) in the shape of a comparison's tables, with the target's columns alone."""
    calls: list[pa.Table] = []
    tensors: list[pa.Table] = []
    offset = 0
    for rank in run.ranks:
        sources = _sources(run, rank)
        for step in run.written_steps(rank):
            part = run.step_tables(step, rank)
            verdicts = check.verdicts.get((rank, step), {})
            one, other = _step(part.calls, part.slots, part.tensors, rank, offset, sources, verdicts)
            calls.append(one)
            tensors.append(other)
            offset += one.num_rows
    if not calls:
        return _step(CALLS.empty_table(), SLOTS.empty_table(), TENSORS.empty_table(), 0, 0, {}, {})
    return pa.concat_tables(calls), pa.concat_tables(tensors)


class _Source(NamedTuple):
    """The line of the user's code that made a call."""

    file: str | None = None
    line: int | None = None


def _sources(run: Run, rank: int) -> dict[int, _Source]:
    sources = {}
    for row in run.stacks(rank).to_pylist():
        if row["user"] is not None:
            frame = row["frames"][row["user"]]
            sources[row["stack"]] = _Source(frame["file"], frame["line"])
    return sources


def _step(
    calls: pa.Table,
    slots: pa.Table,
    tensors: pa.Table,
    rank: int,
    offset: int,
    sources: dict[int, _Source],
    verdicts: dict[int, str],
) -> tuple[pa.Table, pa.Table]:
    count = calls.num_rows
    order = calls.column("order").to_numpy()
    row_of_order = np.full(int(order.max(initial=-1)) + 2, -1)
    row_of_order[order] = np.arange(count)
    parent = row_of_order[calls.column("parent").fill_null(-1).to_numpy()]

    number = tensors.column("tensor").to_numpy()
    tensor_row = np.full(int(number.max(initial=-1)) + 2, -1)
    tensor_row[number] = np.arange(len(number))
    slot_tensor = tensor_row[slots.column("tensor").fill_null(-1).to_numpy()]
    slot_call = row_of_order[slots.column("call").to_numpy()]
    measured = slot_tensor >= 0

    dtype = tensors.column("dtype").to_pylist()
    top = np.array([largest(name) if name else np.nan for name in dtype] + [np.nan])
    low, high = (np.append(tensors.column(n).fill_null(np.nan).to_numpy(), np.nan) for n in ("min", "max"))
    size = np.fmax(np.abs(low), np.abs(high))
    bad = sum(np.append(tensors.column(n).fill_null(0).to_numpy(), 0) for n in ("nan", "posinf", "neginf"))
    nan = np.append(tensors.column("nan").fill_null(0).to_numpy(), 0)
    output = np.asarray(pc.starts_with(slots.column("slot"), "output").to_numpy(), bool)

    def gather(mask: Flags, values: Floats | Ints, start: float) -> Floats:
        into = np.full(count, start)
        np.fmax.at(into, slot_call[mask], values[slot_tensor[mask]])
        return into

    bad_out = gather(measured & output, np.asarray(bad), 0)
    verdict = [verdicts.get(item) for item in order.tolist()]

    first = np.full(count, -1)
    for mask in (measured & ~output, measured & output):
        first[slot_call[mask][::-1]] = slot_tensor[mask][::-1]
    magnitude = gather(measured & output, size, np.nan)
    limit = top[first]
    with np.errstate(divide="ignore", invalid="ignore"):
        headroom = np.log2(limit / magnitude)
    stack = calls.column("stack").to_pylist()
    lines = [sources.get(number, _Source()) for number in stack]
    columns = {
        "pair": pa.array(np.arange(count) + offset, pa.int32()),
        "step": calls.column("step"),
        "rank": pa.array(np.full(count, rank), pa.int32()),
        "target_order": calls.column("order"),
        "target_name": calls.column("name"),
        "kind": calls.column("kind"),
        "module": calls.column("module"),
        "module_class": calls.column("module_class"),
        "phase": calls.column("phase"),
        "parent": pa.array(parent + offset, pa.int32(), mask=parent < 0),
        "dtype": pa.array([dtype[i] if i >= 0 else None for i in first], pa.string()),
        "magnitude_in": _null_for_nan(gather(measured & ~output, size, np.nan)),
        "magnitude": _null_for_nan(magnitude),
        "peak": _null_for_nan(np.where(bad_out > 0, np.inf, magnitude)),  # drawn by the story
        "largest": _null_for_nan(limit),
        "headroom": _null_for_nan(headroom),
        "nan": pa.array(gather(measured & output, nan, 0), pa.int64()),
        "inf": pa.array(gather(measured & output, np.asarray(bad) - nan, 0), pa.int64()),
        "verdict": pa.array(verdict, pa.string()),
        "arguments": calls.column("arguments"),
        "recompute": calls.column("recompute"),
        "error": calls.column("error"),
        "source_file": pa.array([source.file for source in lines], pa.string()),
        "source_line": pa.array([source.line for source in lines], pa.int32()),
    }
    return pa.table(columns), _slots(calls, slots, tensors, slot_call, slot_tensor, rank, offset, size, top)


def _slots(
    calls: pa.Table,
    slots: pa.Table,
    tensors: pa.Table,
    slot_call: Ints,
    slot_tensor: Ints,
    rank: int,
    offset: int,
    size: Floats,
    top: Floats,
) -> pa.Table:
    at = pa.array(slot_tensor, pa.int64(), mask=slot_tensor < 0)
    row = tensors.take(at)
    name = calls.column("name").take(pa.array(slot_call)).cast(pa.string())
    with np.errstate(divide="ignore", invalid="ignore"):
        headroom = np.log2(top / size)[slot_tensor]
    shape = ["" if item is None else str(item) for item in row.column("shape").to_pylist()]
    statistics = {f"target_{word}": row.column(word) for word in ("min", "max", "mean", "l2", "nan", "zero")}
    return pa.table(
        {
            "pair": pa.array(slot_call + offset, pa.int32()),
            "step": slots.column("step"),
            "rank": pa.array(np.full(slots.num_rows, rank), pa.int32()),
            "slot": slots.column("slot"),
            "target_name": pc.binary_join_element_wise(name, slots.column("slot").cast(pa.string()), "."),
            "target_dtype": row.column("dtype"),
            "target_shape": pa.array(shape, pa.string()),
            **statistics,
            "target_inf": pc.add(row.column("posinf"), row.column("neginf")),
            "headroom": _null_for_nan(headroom),
            "kept": pc.is_valid(row.column("shard")),
            "note": slots.column("note"),
        }
    )


def _null_for_nan(values: Floats) -> pa.Array:
    return pa.array(values, pa.float64(), mask=np.isnan(values))


def check_summary(check: Check, calls: pa.Table) -> TableRow:
    """Return the JSON of `numscope check --json`, with the rows of the chain's calls in the table."""
    shape: TableRow = plain(check.to_dict())
    if check.origin is not None:
        keys = zip(*(calls.column(name).to_pylist() for name in ("rank", "step", "target_order")))
        rows = {key: row for row, key in enumerate(keys)}
        step = (check.origin.rank, check.origin.step)
        shape["chain"] = shape["chain"][:_CHAIN]
        shape["chain_rows"] = [rows[(*step, link.order)] for link in check.chain[:_CHAIN]]
    return shape


def version(run: Run) -> str:
    """Return a text that changes when a step of this run is complete."""
    path = Path(str(run.path))
    return ",".join(f"{file.parent.name}:{file.stat().st_size}" for file in sorted(path.glob("rank*/steps.jsonl")))
