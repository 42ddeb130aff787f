"""Runs of more ranks than a machine can hold: one captured step, written as steps of one rank whose files all share.

    python -m bench.many_ranks TEMPLATE OUT --ranks 1024 --steps 10

OUT/reference and OUT/target differ as two runs do: in each step after the first half every rounded tensor differs by about
1e-7. On one rank of the target, in one step, one call and all after it are off by 1 %: the answer that a comparison must give.
Files are hard links, so that 1,024 ranks take the room of two; a reader opens and reads each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.synthetic import changed, columns, full, put
from numscope.store.checksums import sealed
from numscope.store.reader import Run, StepTables, open_run
from numscope.store.rundir import RANK
from numscope.store.writer import Batch, RunWriter

OFF = 1e-2  # relative


class Fault(NamedTuple):
    """Where one call of the target is wrong."""

    rank: int
    step: int
    call: str


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("template", type=Path, help="a run; its first step is taken")
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    template = open_run(args.template)
    write_pair(template, args.out, args.ranks, args.steps)
    each = args.ranks * args.steps
    made = {"calls": each * template.calls.num_rows, "slots": each * template.tensors.num_rows}
    sys.stdout.write(json.dumps(made) + "\n")


def write_pair(template: Run, out: Path, ranks: int, steps: int) -> Fault:
    """Write both runs; return where the target is wrong."""
    tables = template.step_tables(template.steps[0], template.ranks[0])
    fault = Fault(ranks // 2, steps // 2, a_call(tables))
    for side in ("reference", "target"):
        path = out / side
        manifest = {**template.manifest, "world_size": ranks, "job": None}
        for rank in (0, fault.rank) if side == "target" and fault.rank else (0,):
            with RunWriter(path, rank=rank, manifest=manifest) as writer:
                of = template.stacks(template.ranks[0])
                writer.write(Batch(stacks={name: of[name].combine_chunks() for name in ("stack", "frames", "user")}))
                for step in range(steps):
                    wrong = fault.call if side == "target" and (rank, step) == fault[:2] else None
                    tensors = changed(tables.tensors, step, rounded=side == "target" and step >= steps // 2)
                    if wrong:
                        tensors = with_error(tables, tensors, wrong)
                    parts = (tables.calls, tables.slots, tensors)
                    writer.write(Batch(*({**columns(part), "step": full(step, part)} for part in parts)))
                    writer.end_step(step, {})
        for rank in range(ranks):
            if not (path / f"rank{rank}").exists():
                link_rank(path / "rank0", path / f"rank{rank}", rank)
    return fault


def a_call(tables: StepTables) -> str:
    """Return a call in the middle of the forward pass that has no inner calls."""
    calls = tables.calls.filter(
        pc.and_(pc.equal(tables.calls["kind"], "api"), pc.equal(tables.calls["phase"], "forward"))
    )
    names = [name for name in calls["name"].to_pylist() if ".linear." in name]
    return str(names[len(names) // 2])


def with_error(tables: StepTables, tensors: pa.Table, call: str) -> pa.Table:
    """Return the tensors with those that a call makes, and all that are made after it, off by 1 %."""
    order = tables.calls["order"].filter(pc.equal(tables.calls["name"], call))[0]
    made = pc.and_(pc.equal(tables.slots["call"], order), pc.starts_with(tables.slots["slot"].cast("string"), "output"))
    first = pc.min(tables.slots["tensor"].filter(made)).as_py()
    floats = pc.is_in(tensors["dtype"], pa.array(["float32", "bfloat16", "float16"])).to_numpy()
    wrong = floats & (tensors["tensor"].to_numpy() >= first)
    norm = tensors["l2"].to_numpy(zero_copy_only=False)
    sketch = tensors["sketch"].combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(len(norm), -1)
    noise = np.random.default_rng(7).standard_normal(sketch.shape)
    sketch = sketch + np.where(wrong, OFF / 8 * norm, 0.0)[:, None] * noise
    flat = pa.array(sketch.astype(np.float32).reshape(-1))
    tensors = put(tensors, "sketch", pa.FixedSizeListArray.from_arrays(flat, sketch.shape[1]))
    return put(
        tensors, "hash", np.where(wrong, tensors["hash"].to_numpy() ^ np.uint64(1 << 41), tensors["hash"].to_numpy())
    )


def link_rank(source: Path, rank: Path, number: int) -> None:
    """Make a rank whose files are those of another."""
    for path in sorted(source.rglob("*")):
        copy = rank / path.relative_to(source)
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        elif path.name != RANK:
            copy.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, copy)
    facts = json.loads((source / RANK).read_bytes())
    facts.pop("run", None)
    (rank / RANK).write_bytes(json.dumps(sealed({**facts, "rank": number})).encode())


if __name__ == "__main__":
    main()
