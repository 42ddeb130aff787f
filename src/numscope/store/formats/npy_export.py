"""Writes a run's kept tensors as .npy files, one per tensor."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from numscope.core.dtypes import AnyArray
from numscope.store.formats.step_calls import step_calls
from numscope.store.reader import Run


def export(run: Run, destination: Path) -> int:
    """Write `step{N}/rank{R}/{tensor name}.npy` for each kept tensor, and index.json with names and dtypes."""
    count = 0
    for rank in run.ranks:
        for step in run.written_steps(rank):
            folder = destination / f"step{step}" / f"rank{rank}"
            index: dict[str, dict[str, object]] = {}
            for call in step_calls(run, step, rank):
                for slot, tensor in call.slots:
                    if tensor is None or tensor.load is None:
                        continue
                    name = f"{call.name}.{slot}"
                    folder.mkdir(parents=True, exist_ok=True)
                    file = re.sub(r"[^\w.\-]", "_", name) + ".npy"
                    np.save(folder / file, widened(tensor.load()))
                    index[file] = {"name": name, "dtype": tensor.dtype, "shape": list(tensor.shape)}
            if index:
                (folder / "index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")
                count += len(index)
    return count


def kept_slots(run: Run) -> int:
    """Return how many slots have their data."""
    return int(pc.sum(run.tensors["kept"]).as_py() or 0)


def widened(array: AnyArray) -> AnyArray:
    """Return an array as .npy can hold it: bf16 and fp8 as float32, which is exact."""
    is_foreign = array.dtype.kind == "V" or array.dtype.name.startswith(("bfloat", "float8"))
    return array.astype(np.float32) if is_foreign else array
