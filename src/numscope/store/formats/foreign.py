"""The types that the readers of other tools' dumps return, and the writer that turns them into a run.

A fact that a dump does not have stays null in the run: a tensor without data has no hash and no sketch, so that a
comparison says what is unknown instead of guessing it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from numscope.core.dtypes import AnyArray
from numscope.core.errors import RunError
from numscope.core.names import parse_call
from numscope.core.untrusted import reading
from numscope.fingerprint.columns import Fingerprints
from numscope.fingerprint.numpy_form import NumpyBatch
from numscope.store import manifest
from numscope.store.batch import ColumnValues
from numscope.store.schema import SKETCH, TENSORS
from numscope.store.writer import Batch, RunWriter, Sample

BATCH_BYTES = 64 << 20


class Frame(NamedTuple):
    """A frame of a call's stack."""

    file: str
    line: int
    function: str
    code: str


@dataclass(frozen=True)
class ForeignTensor:
    """A tensor of a dump; None is a fact that the dump does not have."""

    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], AnyArray] | None = None  # reads the data
    sampled: bool = False  # the data is a part of the elements
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    l2: float | None = None
    digest: int | None = None  # the dump's own hash of the content: comparable only within its format

    @classmethod
    def of_array(cls, array: AnyArray) -> ForeignTensor:
        """Return a tensor whose data is in memory."""
        return cls(array.dtype.name, array.shape, lambda: array)

    @classmethod
    def of_npy(cls, file: Path) -> ForeignTensor:
        """Return a tensor whose data is in a .npy file."""
        with reading(file):
            header = np.load(file, mmap_mode="r", allow_pickle=False)
        return cls(header.dtype.name, header.shape, partial(load_npy, file))


def load_npy(file: Path) -> AnyArray:
    """Return the array of a .npy file; memory is taken only for what the file really holds."""
    with reading(file):
        return np.array(np.load(file, mmap_mode="r", allow_pickle=False))


@dataclass
class ForeignCall:
    """One call of a dump, under its name in a run."""

    name: str
    slots: list[tuple[str, ForeignTensor | None]] = field(default_factory=list)
    parent: str | None = None
    arguments: Mapping[str, object] | None = None
    stack: tuple[Frame, ...] | None = None  # outermost first


@dataclass(frozen=True)
class ForeignStep:
    """The calls of one step of one rank, in order."""

    rank: int
    step: int
    calls: list[ForeignCall]


@dataclass(frozen=True)
class Dump:
    """A dump: the tool that wrote it, and its steps, which are read rank by rank."""

    tool: str
    steps: Iterable[ForeignStep]
    framework: str = ""
    hash: str = ""  # the tool whose hash is in the hash column; "" for numscope's own
    notes: dict[str, object] = field(default_factory=dict)


# Facts about the importing process, which say nothing about the dumped job.
_NOT_IMPORTED = """
    created argv script git environment framework_version python platform cpus
    """.split()
_KINDS = {
    "Module": "module",
    "Optimizer": "optimizer",
    "Aten": "aten",
    "Distributed": "collective",
    "Save": "save",
    "Data": "data",
}


def write_run(path: str | os.PathLike[str], dump: Dump, overwrite: bool = False) -> int:
    """Write a dump as a run; return the number of calls."""
    writers: dict[int, _RankWriter] = {}
    total = 0
    facts = manifest.collect(framework=dump.framework, settings={"imported": dump.tool})
    now = facts["created"]
    facts.update(dict.fromkeys(_NOT_IMPORTED))
    facts.update(imported={"tool": dump.tool, "at": now, **dump.notes}, **({"hash": dump.hash} if dump.hash else {}))
    try:
        for step in dump.steps:
            if step.rank not in writers:
                writer = RunWriter(path, rank=step.rank, manifest=facts, overwrite=overwrite)
                writers[step.rank] = _RankWriter(writer, dump.tool)
            writers[step.rank].step(step)
            total += len(step.calls)
    finally:
        for rank_writer in writers.values():
            rank_writer.close()
    if not total:
        raise RunError(f"this {dump.tool} dump has no calls: give the folder that holds the dumped files")
    return total


class _RankWriter:
    """Turns the steps of one rank into batches."""

    def __init__(self, writer: RunWriter, tool: str) -> None:
        self._writer = writer
        self._tool = tool
        self._stacks: dict[tuple[Frame, ...], int] = {}

    def step(self, step: ForeignStep) -> None:
        orders: dict[str, int] = {}
        for order, call in enumerate(step.calls):
            orders.setdefault(call.name, order)
        numbers = iter(range(1 << 31))
        batches = self._batches(step, orders, numbers)
        while True:
            with reading(f"step {step.step} of the {self._tool} dump"):  # its numbers may be any
                batch = next(batches, None)
            if batch is None:
                break
            self._writer.write(batch)
        self._writer.end_step(step.step, {})

    def close(self) -> None:
        self._writer.close()

    def _batches(self, step: ForeignStep, orders: dict[str, int], numbers: Iterator[int]) -> Iterator[Batch]:
        rows = _BatchRows(step.step)
        for order, call in enumerate(step.calls):
            rows.add_call(order, call, orders, self._stack(call, rows))
            for slot, tensor in call.slots:
                rows.add_slot(order, slot, tensor, numbers)
            if rows.size > BATCH_BYTES:
                yield rows.batch()
                rows = _BatchRows(step.step)
        yield rows.batch()

    def _stack(self, call: ForeignCall, rows: _BatchRows) -> int | None:
        if call.stack is None:
            return None
        number = self._stacks.get(call.stack)
        if number is None:
            number = self._stacks[call.stack] = len(self._stacks)
            rows.add_stack(number, call.stack)
        return number


class _TensorRow(NamedTuple):
    number: int
    tensor: ForeignTensor
    fingerprint: int  # its row among the fingerprints of the batch, or -1 where there is no data to measure


class _BatchRows:
    """The rows of one batch."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._calls: list[dict[str, object]] = []
        self._slots: list[dict[str, object]] = []
        self._stacks: list[dict[str, object]] = []
        self._tensors: list[_TensorRow] = []
        self._fingerprints = NumpyBatch()
        self._data: dict[int, AnyArray | Sample] = {}
        self.size = 0

    def add_call(self, order: int, call: ForeignCall, orders: dict[str, int], stack: int | None) -> None:
        parts = parse_call(call.name)
        kind = "save" if parts is None else _KINDS.get(parts.prefix, "api")
        phase = "forward" if parts is None else {"step": "optimizer"}.get(parts.phase, parts.phase)
        row: dict[str, object] = {
            "step": self._step,
            "order": order,
            "name": call.name,
            "kind": kind,
            "module": parts.path if parts else "",
            "module_class": parts.op if parts and kind == "module" else "",
            "phase": phase,
            "parent": orders.get(call.parent) if call.parent else None,
            "forward": orders.get(call.name.replace(".backward", ".forward")) if phase == "backward" else None,
            "arguments": json.dumps(call.arguments) if call.arguments else None,
            "stack": stack,
            "recompute": False,
            "thread": 0,
        }
        self._calls.append(row)
        self.size += 200

    def add_slot(self, order: int, slot: str, tensor: ForeignTensor | None, numbers: Iterator[int]) -> None:
        row: dict[str, object] = {"step": self._step, "call": order, "slot": slot}
        if tensor is None:
            self._slots.append({**row, "tensor": None, "note": "not in the dump"})
            return
        number = next(numbers)
        fingerprint = -1
        if tensor.load is not None:
            array = tensor.load()
            if tensor.sampled:
                self._data[number] = Sample(array)
            else:
                fingerprint = self._fingerprints.add(array)
                self._data[number] = array
            self.size += array.nbytes
        self._tensors.append(_TensorRow(number, tensor, fingerprint))
        self._slots.append({**row, "tensor": number, "note": None})
        self.size += 600

    def add_stack(self, number: int, frames: tuple[Frame, ...]) -> None:
        user = next((i for i in range(len(frames) - 1, -1, -1) if is_user_file(frames[i].file)), None)
        self._stacks.append({"stack": number, "frames": [frame._asdict() for frame in frames], "user": user})

    def batch(self) -> Batch:
        prints = self._fingerprints.collect()
        tensors = [self._tensor_columns(row, prints) for row in self._tensors]
        columns = _columns(tensors)
        columns["shape"] = pa.array(columns.get("shape", []), TENSORS.field("shape").type)
        sketches = np.full((len(tensors), SKETCH), np.nan)
        for at, row in enumerate(self._tensors):
            if row.fingerprint >= 0:
                sketches[at] = prints.sketch[row.fingerprint]
        columns["sketch"] = sketches
        return Batch(_columns(self._calls), _columns(self._slots), columns, _columns(self._stacks), self._data)

    def _tensor_columns(self, row: _TensorRow, prints: Fingerprints) -> dict[str, object]:
        tensor = row.tensor
        columns: dict[str, object] = {
            "step": self._step,
            "tensor": row.number,
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "elements": math.prod(tensor.shape),
        }
        if row.fingerprint >= 0:  # measured
            for name in ("nan", "posinf", "neginf", "zero", "hash"):
                columns[name] = int(getattr(prints, name)[row.fingerprint])
            for name in ("min", "max", "mean", "l2"):
                columns[name] = _finite(float(getattr(prints, name)[row.fingerprint]))
            return columns
        sizes = {"min": tensor.min, "max": tensor.max, "mean": tensor.mean, "l2": tensor.l2}
        # A non-finite statistic proves at least one such element, but not how many.
        columns["nan"] = 1 if any(value is not None and math.isnan(value) for value in sizes.values()) else None
        columns["posinf"] = 1 if tensor.max == math.inf else None
        columns["neginf"] = 1 if tensor.min == -math.inf else None
        columns["zero"], columns["hash"] = None, tensor.digest
        columns.update({name: _finite(value) for name, value in sizes.items()})
        return columns


def _columns(rows: list[dict[str, object]]) -> dict[str, ColumnValues]:
    """Return rows as columns."""
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def is_user_file(file: str) -> bool:
    """Tell whether a frame's file is the user's own code, by its path on any machine."""
    parts = file.replace("\\", "/").split("/")
    return not ({"site-packages", "dist-packages"} & set(parts)) and not any(
        part.startswith("python3.") for part in parts
    )
