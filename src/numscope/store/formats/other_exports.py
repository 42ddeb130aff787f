"""Writes a run as ptdbg_ascend's files, as .npy files, as CSV and as Parquet."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from numscope.core.names import parse_call
from numscope.store.formats.views import CallView, step_calls
from numscope.store.reader import Run


def export_ptdbg(run: Run, destination: Path) -> int:
    """Write `rank{R}/step{N}.pkl`, JSON lines, and a folder of .npy beside each; return the number of files."""
    stamp = time.strftime("%Y%m%d_%H%M%S")
    count = 0
    for rank in run.ranks:
        for step in run.written_steps(rank):
            folder = destination / f"rank{rank}"
            folder.mkdir(parents=True, exist_ok=True)
            calls = [call for call in step_calls(run, step, rank) if call.kind in ("api", "collective", "aten")]
            with (folder / f"step{step}.pkl").open("w", encoding="utf-8") as stream:
                data = folder / f"step{step}_{stamp}"
                for number, call in enumerate(calls):
                    count += _ptdbg_call(number, call, stream, data)
            count += 1
    return count


def _ptdbg_call(number: int, call: CallView, stream: Any, data: Path) -> int:
    parts = parse_call(call.name)
    if parts is None:
        return 0
    head = f"{number}_{parts.prefix}_{parts.op}_{call.phase}"
    if call.frames and call.phase == "forward":
        frames = [[f["file"], f["line"], f["function"], f["code"]] for f in reversed(call.frames)]
        stream.write(json.dumps([f"{head}_stack_info", frames]) + "\n")
    written = 0
    turned = {"input": "input", "kwargs": "input", "output": "output"}
    if call.phase == "backward":
        turned = {"input": "output", "output": "input"}
    for group in ("input", "output"):
        for slot, tensor in call.slots:
            first, _, tail = slot.partition(".")
            if tensor is None or turned.get(first) != group:
                continue
            high, low, mean, _ = tensor.statistics()
            name = f"{head}_{group}.{tail}"
            stream.write(
                json.dumps([name, 1, [], f"torch.{tensor.dtype}", list(tensor.shape), [high, low, mean]]) + "\n"
            )
            if tensor.load is not None:
                data.mkdir(exist_ok=True)
                np.save(data / f"{name}.npy", widened(tensor.load()))
                written += 1
    return written


def widened(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array as .npy can hold it: bf16 and fp8 as float32, which is exact."""
    return (
        array.astype(np.float32)
        if array.dtype.kind == "V" or array.dtype.name.startswith(("bfloat", "float8"))
        else array
    )


def export_npy(run: Run, destination: Path) -> int:
    """Write `step{N}/rank{R}/{tensor name}.npy` for each kept tensor, and index.json with what .npy cannot say."""
    count = 0
    for rank in run.ranks:
        for step in run.written_steps(rank):
            folder = destination / f"step{step}" / f"rank{rank}"
            index: dict[str, Any] = {}
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


def export_csv(run: Run, destination: Path) -> int:
    """Write calls.csv and tensors.csv; a destination that ends in .csv gets the tensors alone."""
    tensors = run.tensors.drop_columns(["sketch"])
    shape = pa.array(
        [None if value is None else json.dumps(value) for value in tensors["shape"].to_pylist()], pa.string()
    )
    tensors = tensors.set_column(tensors.schema.get_field_index("shape"), "shape", shape)
    digest = pa.array(
        [None if value is None else f"{value:016x}" for value in tensors["hash"].to_pylist()], pa.string()
    )
    tensors = tensors.set_column(tensors.schema.get_field_index("hash"), "hash", digest)
    return _tables({"calls": run.calls, "tensors": tensors}, destination, ".csv", pyarrow.csv.write_csv)


def export_parquet(run: Run, destination: Path) -> int:
    """Write calls.parquet and tensors.parquet, sketches included."""
    return _tables({"calls": run.calls, "tensors": run.tensors}, destination, ".parquet", pyarrow.parquet.write_table)


def _tables(tables: dict[str, pa.Table], destination: Path, suffix: str, write: Any) -> int:
    if destination.suffix == suffix:
        destination.parent.mkdir(parents=True, exist_ok=True)
        write(tables["tensors"], destination)
        return 1
    destination.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        write(table, destination / f"{name}{suffix}")
    return len(tables)


def kept(run: Run) -> int:
    """Return how many slots have their data."""
    return int(pc.sum(run.tensors["kept"]).as_py() or 0)
