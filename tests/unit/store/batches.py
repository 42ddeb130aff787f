"""Small batches as capture makes them, for the tests of the store."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from numscope.store.rundir import write_end
from numscope.store.writer import Batch, RunWriter, Sample


def content_hash(array: np.ndarray[Any, Any]) -> int:
    """Return some hash of the content; the store never looks inside it."""
    return int.from_bytes(hashlib.blake2b(array.tobytes(), digest_size=8).digest(), "little")


def batch_of(
    step: int, arrays: list[np.ndarray[Any, Any]], keep: bool = True, first: int = 0, sample: bool = False
) -> Batch:
    """Return one linear call per array, each with the array as output.0 and as the next call's input.0."""
    count = len(arrays)
    order = np.arange(first, first + count, dtype=np.int32)
    names = pa.array([f"Functional.linear.{n}.forward" for n in order])
    slots = [(n, slot, t) for i, n in enumerate(order) for slot, t in (("input.0", order[i - 1]), ("output.0", n))]
    statistics = [_statistics(array) for array in arrays]
    return Batch(
        calls={
            "step": np.full(count, step, np.int32),
            "order": order,
            "name": pa.DictionaryArray.from_arrays(pa.array(np.arange(count, dtype=np.int32)), names),
            "kind": ["api"] * count,
            "module": ["blocks.0.mlp"] * count,
            "phase": ["forward"] * count,
            "arguments": ['{"args": {}, "kwargs": {"eps": 1e-05}}'] * count,
            "stack": [0] * count,
        },
        slots={
            "step": np.full(len(slots), step, np.int32),
            "call": [slot[0] for slot in slots],
            "slot": [slot[1] for slot in slots],
            "tensor": [slot[2] for slot in slots],
        },
        tensors={
            "step": np.full(count, step, np.int32),
            "tensor": order,
            "dtype": [array.dtype.name for array in arrays],
            "shape": [list(array.shape) for array in arrays],
            "device": ["cpu"] * count,
            "elements": np.array([array.size for array in arrays], np.int64),
            "hash": np.array([content_hash(array) for array in arrays], np.uint64),
            "sketch": np.random.default_rng(step).standard_normal((count, 64)),
            **{key: np.array([row[key] for row in statistics]) for key in statistics[0]},
        }
        if count
        else {},
        stacks={
            "stack": [0],
            "frames": [
                [
                    {"file": "train.py", "line": 7, "function": "main", "code": "loss = model(x)"},
                    {"file": "model.py", "line": 41, "function": "forward", "code": "return F.linear(x, w)"},
                    {"file": "torch/nn/functional.py", "line": 9, "function": "linear", "code": ""},
                ]
            ],
            "user": [1],
        }
        if step == 0 and first == 0
        else {},
        data=({int(n): Sample(array) if sample else array for n, array in zip(order, arrays)}) if keep else {},
    )


def write_run(path: Path, steps: int = 3, calls: int = 4, keep: bool = True, rank: int = 0, **options: Any) -> None:
    """Write a run of a few steps."""
    options.setdefault("manifest", {"framework": "torch", "settings": {"level": "mix"}, "world_size": 1})
    with RunWriter(path, rank=rank, **options) as writer:
        for step in range(steps):
            writer.write(batch_of(step, arrays_of(step, calls), keep))
            writer.end_step(step, {"a reason": 1})


def cut_off(path: Path) -> None:
    """Make of a run that has ended one that was killed in its first step."""
    (path / "rank0/steps.jsonl").write_text("")
    write_end(path / "rank0", "", 0)


def arrays_of(step: int, calls: int = 4) -> list[np.ndarray[Any, Any]]:
    """Return the arrays that write_run writes in a step."""
    generator = np.random.default_rng(100 + step)
    return [generator.standard_normal((2, 3)).astype(np.float32) for _ in range(calls)]


def _statistics(array: np.ndarray[Any, Any]) -> dict[str, float | int]:
    values = np.atleast_1d(array).astype(np.complex128 if array.dtype.kind == "c" else np.float64).real
    finite = values[np.isfinite(values)]
    return {
        "nan": int(np.isnan(values).sum()),
        "posinf": int((values == np.inf).sum()),
        "neginf": int((values == -np.inf).sum()),
        "zero": int((values == 0).sum()),
        "min": float(finite.min()) if finite.size else np.nan,
        "max": float(finite.max()) if finite.size else np.nan,
        "mean": float(finite.mean()) if finite.size else np.nan,
        "l2": float(np.sqrt((finite**2).sum())) if finite.size else np.nan,
    }
