"""A run written by hand, call by call, for tests that need to know every tensor of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from numscope.compare.load.side import Codebook, Side, load
from numscope.fingerprint.definition import fingerprint
from numscope.store import schema
from numscope.store.batch import Batch, record_batch
from numscope.store.reader import StepTables
from numscope.store.writer import RunWriter

Arrays = dict[str, NDArray[Any]]


class Script:
    """Collects calls; an array object that is used again is the same tensor."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.slots: list[dict[str, Any]] = []
        self.numbers: dict[int, int] = {}
        self.arrays: list[NDArray[Any]] = []

    def call(
        self,
        name: str,
        given: Arrays | None = None,
        made: Arrays | None = None,
        *,
        module: str = "",
        kind: str = "",
        parent: int | None = None,
        forward: int | None = None,
        arguments: dict[str, Any] | None = None,
        recompute: bool = False,
        module_class: str = "",
    ) -> int:
        """Add a call and return its order."""
        order = len(self.calls)
        prefix = name.partition(".")[0]
        guess = {"Module": "module", "Optimizer": "optimizer", "Data": "data"}.get(prefix, "api")
        phase = "backward" if ".backward" in name else "optimizer" if prefix == "Optimizer" else "forward"
        if prefix == "Data":
            phase = "input"
        self.calls.append(
            {
                "order": order,
                "name": name,
                "kind": kind or guess,
                "module": module,
                "module_class": module_class,
                "phase": phase,
                "parent": parent,
                "forward": forward,
                "recompute": recompute,
                "arguments": json.dumps({"kwargs": arguments}) if arguments else None,
            }
        )
        for slot, array in {**(given or {}), **(made or {})}.items():
            self.slots.append({"call": order, "slot": slot, "tensor": self._number(array)})
        return order

    def _number(self, array: NDArray[Any]) -> int:
        if id(array) not in self.numbers:
            self.numbers[id(array)] = len(self.arrays)
            self.arrays.append(array)
        return self.numbers[id(array)]

    def batch(self, step: int = 0, keep: bool = False) -> Batch:
        """Return the calls as the recorder hands them to the writer."""

        def columns(rows: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, Any]:
            return {"step": [step] * len(rows), **{name: [row[name] for row in rows] for name in names}}

        prints = [fingerprint(array) for array in self.arrays]
        measured = ("elements", "nan", "posinf", "neginf", "zero", "min", "max", "mean", "l2", "hash")
        tensors = {
            "step": [step] * len(self.arrays),
            "tensor": list(range(len(self.arrays))),
            "dtype": [array.dtype.name for array in self.arrays],
            "shape": [list(array.shape) for array in self.arrays],
            **{name: np.array([getattr(one, name)[0] for one in prints]) for name in measured},
            "sketch": np.array([one.sketch[0] for one in prints]).reshape(-1, schema.SKETCH),
        }
        names = (
            "order",
            "name",
            "kind",
            "module",
            "module_class",
            "phase",
            "parent",
            "forward",
            "recompute",
            "arguments",
        )
        return Batch(
            calls=columns(self.calls, names),
            slots=columns(self.slots, ("call", "slot", "tensor")),
            tensors=tensors,
            data=dict(enumerate(self.arrays)) if keep else {},
        )

    def tables(self) -> StepTables:
        """Return the tables of a step as the reader gives them."""
        batch = self.batch()
        parts = [
            pa.Table.from_batches([record_batch(name, columns)])
            for name, columns in (("calls", batch.calls), ("slots", batch.slots), ("tensors", batch.tensors))
        ]
        return StepTables(*parts)

    def side(self, book: Codebook) -> Side:
        """Return the step as the comparison's columns."""
        return load(self.tables(), 0, 0, book)

    def write(self, path: Path, keep: bool = False, steps: int = 1, manifest: dict[str, Any] | None = None) -> Path:
        """Write the calls as a run, the same in every step."""
        with RunWriter(path, rank=0, manifest=manifest or {}) as writer:
            for step in range(steps):
                writer.write(self.batch(step, keep))
                writer.end_step(step, {})
        return path


def numbers(shape: tuple[int, ...] = (8, 16), seed: int = 0, dtype: Any = np.float32) -> NDArray[Any]:
    """Return random numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
