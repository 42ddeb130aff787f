"""Runs too large to capture in a benchmark: one captured step, written again and again with the store's own writer.

    python -m bench.synthetic long TEMPLATE OUT --slots 10000000    a step after the other, until there are that many slots
    python -m bench.synthetic wide TEMPLATE OUT --calls 100000      one step, its calls again and again under other modules

OUT/reference and OUT/target differ as two runs do: the first half is the same to the bit, then every rounded tensor differs
by about 1e-7. In the wide one the target also has a call more, in the middle.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from numscope.store.reader import StepTables, open_run
from numscope.store.writer import Batch, RunWriter

ROUNDING = 1e-7


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("form", choices=("long", "wide"))
    parser.add_argument("template", type=Path, help="a run; its first step is taken")
    parser.add_argument("out", type=Path)
    parser.add_argument("--slots", type=int, default=10_000_000)
    parser.add_argument("--calls", type=int, default=100_000)
    args = parser.parse_args()
    run = open_run(args.template)
    tables = run.step_tables(run.steps[0], run.ranks[0])
    made: dict[str, int] = {}
    for side in ("reference", "target"):
        stacks = {name: run.stacks(run.ranks[0])[name].combine_chunks() for name in ("stack", "frames", "user")}
        with RunWriter(args.out / side, rank=0, manifest=run.manifest, overwrite=True) as writer:
            writer.write(Batch(stacks=stacks))
            if args.form == "long":
                made = write_long(writer, tables, args.slots, side == "target")
            else:
                made = write_wide(writer, tables, args.calls, side == "target")
    sys.stdout.write(json.dumps(made) + "\n")


def write_long(writer: RunWriter, tables: StepTables, slots: int, target: bool) -> dict[str, int]:
    steps = -(-slots // tables.slots.num_rows)
    for step in range(steps):
        tensors = changed(tables.tensors, step, rounded=target and step >= steps // 2)
        writer.write(
            Batch(*({**columns(table), "step": full(step, table)} for table in (tables.calls, tables.slots, tensors)))
        )
        writer.end_step(step, {})
    return {"steps": steps, "calls": steps * tables.calls.num_rows, "slots": steps * tables.slots.num_rows}


def write_wide(writer: RunWriter, tables: StepTables, calls: int, target: bool) -> dict[str, int]:
    copies = -(-calls // tables.calls.num_rows)
    order = tensor = more = 0
    for copy in range(copies):
        if target and copy == copies // 2:
            writer.write(Batch(*extra(order)))
            order += 1
        parts = moved(tables, copy, order, tensor, rounded=target and copy >= copies // 2)
        writer.write(Batch(*map(columns, parts)))
        order += tables.calls.num_rows
        tensor += 1 + int(pc.max(tables.tensors["tensor"]).as_py())
        more += tables.slots.num_rows
    writer.end_step(0, {})
    return {"calls": order, "slots": more}


def extra(order: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return a call that one side alone has, without tensors."""
    call = {"step": [0], "order": [order], "name": ["Torch.is_grad_enabled.0.forward"], "kind": ["api"]}
    return {**call, "module": [""], "phase": ["forward"], "recompute": [False], "thread": [0]}, {}, {}


def moved(tables: StepTables, copy: int, order: int, tensor: int, rounded: bool) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Return the step's tables as another module's calls, with the numbering continued."""
    calls, slots = tables.calls, tables.slots
    calls = put(
        calls, "module", [f"part{copy}.{path}" if path else f"part{copy}" for path in calls["module"].to_pylist()]
    )
    calls = put(calls, "name", [renamed(name, copy) for name in calls["name"].to_pylist()])
    for name in ("order", "parent", "forward"):
        calls = put(calls, name, pc.add(calls[name], order))
    slots = put(put(slots, "call", pc.add(slots["call"], order)), "tensor", pc.add(slots["tensor"], tensor))
    tensors = changed(tables.tensors, copy, rounded)
    tensors = put(tensors, "tensor", pc.add(tensors["tensor"], tensor))
    return tuple(put(table, "step", full(0, table)) for table in (calls, slots, tensors))  # type: ignore[return-value]


def renamed(name: str, copy: int) -> str:
    """Return the name with another index (`Functional.linear.5.forward`) or module (`Module.head.Linear.forward.0`)."""
    head, _, rest = name.partition(".")
    parts = name.rsplit(".", 2)
    if head == "Module":
        return f"Module.part{copy}.{rest}"
    return f"{parts[0]}.{int(parts[1]) + 10_000 * copy}.{parts[2]}" if parts[1].isdecimal() else name


def changed(tensors: pa.Table, salt: int, rounded: bool) -> pa.Table:
    """Return the tensors with other bits, rounded differently where asked."""
    hashes = tensors["hash"].to_numpy() * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
    if rounded:
        chosen = pc.is_in(tensors["dtype"], pa.array(["float32", "bfloat16", "float16"])).to_numpy()
        hashes = np.where(chosen, hashes ^ np.uint64(1 << 40), hashes)
        sketch = tensors["sketch"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        norm = tensors["l2"].to_numpy(zero_copy_only=False)
        noise = np.random.default_rng(salt).standard_normal(len(sketch)).reshape(len(norm), -1)
        sketch = sketch.reshape(len(norm), -1) + np.where(chosen, ROUNDING / 8 * norm, 0.0)[:, None] * noise
        flat = pa.array(sketch.astype(np.float32).reshape(-1))
        tensors = put(tensors, "sketch", pa.FixedSizeListArray.from_arrays(flat, noise.shape[1]))
    return put(tensors, "hash", hashes)


def put(table: pa.Table, name: str, values: Any) -> pa.Table:
    field = table.schema.field(name)
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        values = pa.array(values, field.type)
    return table.set_column(table.schema.get_field_index(name), field, values.cast(field.type))


def full(value: int, table: pa.Table) -> pa.Array:
    return pa.array(np.full(table.num_rows, value), pa.int32())


def columns(table: pa.Table) -> dict[str, pa.Array]:
    return {name: table[name].combine_chunks() for name in table.column_names}


if __name__ == "__main__":
    main()
