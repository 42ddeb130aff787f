"""The shape that every reader of another tool's dump gives, and how it becomes a run.

What a dump does not say stays null in the run: a statistic without its data has no hash and no sketch, so that a
comparison says what cannot be known instead of guessing it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from numscope.core.errors import RunError
from numscope.core.names import parse_call
from numscope.fingerprint.columns import Fingerprints
from numscope.fingerprint.numpy_form import NumpyBatch
from numscope.store import manifest
from numscope.store.schema import SKETCH, TENSORS
from numscope.store.writer import Batch, RunWriter, Sample

BATCH_BYTES = 64 << 20

Frame = tuple[str, int, str, str]  # file, line, function, code


@dataclass(frozen=True)
class ForeignTensor:
    """What a dump knows of one tensor; None is unknown."""

    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], NDArray[Any]] | None = None  # the data, read when it is needed
    sampled: bool = False  # … is a part of the elements only
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    l2: float | None = None
    digest: int | None = None  # the dump's own hash of the content: comparable within this format alone


@dataclass
class ForeignCall:
    """One call of a dump, under the name that a run gives it."""

    name: str
    slots: list[tuple[str, ForeignTensor | None]] = field(default_factory=list)
    parent: str | None = None
    arguments: dict[str, Any] | None = None
    stack: tuple[Frame, ...] | None = None  # outermost first
    note: str | None = None


@dataclass(frozen=True)
class ForeignStep:
    """The calls of one step of one rank, in order."""

    rank: int
    step: int
    calls: list[ForeignCall]


@dataclass(frozen=True)
class Dump:
    """A dump that was recognised: what it is, and its steps, read one after the other, rank by rank."""

    tool: str
    steps: Iterable[ForeignStep]
    framework: str = ""
    hash: str = ""  # which hash fills the hash column where it is not numscope's own
    notes: dict[str, Any] = field(default_factory=dict)


_OF_THE_MACHINE = ("python", "platform", "cpus")


def write_run(path: str | os.PathLike[str], dump: Dump, overwrite: bool = False) -> int:
    """Write a dump as a run; return the number of calls."""
    writers: dict[int, _RankWriter] = {}
    total = 0
    facts = manifest.collect(framework=dump.framework, settings={"imported": dump.tool})
    now = facts["created"]
    for told_by_the_job in ("created", "argv", "script", "git", "environment", "framework_version", *_OF_THE_MACHINE):
        facts[told_by_the_job] = None  # of this process, not of the job that was dumped
    facts.update(imported={"tool": dump.tool, "at": now, **dump.notes}, **({"hash": dump.hash} if dump.hash else {}))
    try:
        for step in dump.steps:
            if step.rank not in writers:
                writers[step.rank] = _RankWriter(RunWriter(path, rank=step.rank, manifest=facts, overwrite=overwrite))
            writers[step.rank].step(step)
            total += len(step.calls)
    finally:
        for writer in writers.values():
            writer.close()
    if not total:
        raise RunError(f"this {dump.tool} dump has no calls: give the folder that holds the dumped files")
    return total


def kind_and_phase(name: str) -> tuple[str, str, str, str]:
    """Return (kind, phase, module path, class) that a call's name tells."""
    parts = parse_call(name)
    if parts is None:
        return "save", "forward", "", ""
    kinds = {
        "Module": "module",
        "Optimizer": "optimizer",
        "Aten": "aten",
        "Distributed": "collective",
        "Save": "save",
        "Data": "data",
    }
    kind = kinds.get(parts.prefix, "api")
    phase = {"step": "optimizer"}.get(parts.phase, parts.phase)
    return kind, phase, parts.path, parts.op if kind == "module" else ""


class _RankWriter:
    """Turns the steps of one rank into batches."""

    def __init__(self, writer: RunWriter) -> None:
        self._writer = writer
        self._stacks: dict[tuple[Frame, ...], int] = {}

    def step(self, step: ForeignStep) -> None:
        orders: dict[str, int] = {}
        for order, call in enumerate(step.calls):
            orders.setdefault(call.name, order)
        numbers = iter(range(1 << 31))
        for part in self._parts(step, orders, numbers):
            self._writer.write(part)
        self._writer.end_step(step.step, {})

    def close(self) -> None:
        self._writer.close()

    def _parts(self, step: ForeignStep, orders: dict[str, int], numbers: Iterator[int]) -> Iterator[Batch]:
        part = _Part(step.step)
        for order, call in enumerate(step.calls):
            part.call(order, call, orders, self._stack(call, part))
            for slot, tensor in call.slots:
                part.slot(order, slot, tensor, numbers)
            if part.size > BATCH_BYTES:
                yield part.batch()
                part = _Part(step.step)
        yield part.batch()

    def _stack(self, call: ForeignCall, part: _Part) -> int | None:
        if call.stack is None:
            return None
        number = self._stacks.get(call.stack)
        if number is None:
            number = self._stacks[call.stack] = len(self._stacks)
            part.stack(number, call.stack)
        return number


class _Part:
    """The rows of one batch."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._calls: dict[str, list[Any]] = {name: [] for name in _CALL_COLUMNS}
        self._slots: list[tuple[int, str, int | None, str | None]] = []
        self._tensors: list[tuple[int, ForeignTensor, int]] = []  # number, tensor, row of its fingerprint or -1
        self._stacks: dict[str, list[Any]] = {"stack": [], "frames": [], "user": []}
        self._measure = NumpyBatch()
        self._data: dict[int, NDArray[Any] | Sample] = {}
        self.size = 0

    def call(self, order: int, call: ForeignCall, orders: dict[str, int], stack: int | None) -> None:
        kind, phase, module, module_class = kind_and_phase(call.name)
        forward = None
        if phase == "backward":
            forward = orders.get(call.name.replace(".backward", ".forward"))
        arguments = json.dumps(call.arguments) if call.arguments else None
        parent = orders.get(call.parent) if call.parent else None
        row = (order, call.name, kind, module, module_class, phase, parent, forward, arguments, stack, False, 0)
        for name, value in zip(_CALL_COLUMNS, row, strict=True):
            self._calls[name].append(value)
        self.size += 200

    def slot(self, order: int, slot: str, tensor: ForeignTensor | None, numbers: Iterator[int]) -> None:
        if tensor is None:
            self._slots.append((order, slot, None, "not in the dump"))
            return
        number = next(numbers)
        row = -1
        if tensor.load is not None:
            array = tensor.load()
            if tensor.sampled:
                self._data[number] = Sample(array)
            else:
                row = self._measure.add(array)
                self._data[number] = array
            self.size += array.nbytes
        self._tensors.append((number, tensor, row))
        self._slots.append((order, slot, number, None))
        self.size += 600

    def stack(self, number: int, frames: tuple[Frame, ...]) -> None:
        described = [dict(zip(("file", "line", "function", "code"), frame)) for frame in frames]
        user = next((i for i in range(len(frames) - 1, -1, -1) if is_user_file(frames[i][0])), None)
        for name, value in zip(("stack", "frames", "user"), (number, described, user)):
            self._stacks[name].append(value)

    def batch(self) -> Batch:
        calls = {"step": [self._step] * len(self._calls["order"]), **self._calls}
        columns = list(zip(*self._slots)) or [(), (), (), ()]
        slots = {
            "step": [self._step] * len(self._slots),
            **{name: list(values) for name, values in zip(("call", "slot", "tensor", "note"), columns)},
        }
        return Batch(calls=calls, slots=slots, tensors=self._tensor_columns(), stacks=self._stacks, data=self._data)

    def _tensor_columns(self) -> dict[str, Any]:
        prints = self._measure.collect()
        columns: dict[str, Any] = {
            "step": [self._step] * len(self._tensors),
            "tensor": [number for number, _, _ in self._tensors],
            "dtype": [tensor.dtype for _, tensor, _ in self._tensors],
            "shape": pa.array([list(tensor.shape) for _, tensor, _ in self._tensors], TENSORS.field("shape").type),
            "elements": [math.prod(tensor.shape) for _, tensor, _ in self._tensors],
        }
        rows = [_values(tensor, row, prints) for _, tensor, row in self._tensors]
        for index, name in enumerate(_FINGERPRINT):
            columns[name] = [row[index] for row in rows]
        sketches = np.full((len(rows), SKETCH), np.nan)
        for place, (_, _, row) in enumerate(self._tensors):
            if row >= 0:
                sketches[place] = prints.sketch[row]
        columns["sketch"] = sketches
        return columns


_CALL_COLUMNS = tuple(
    """
    order name kind module module_class phase parent forward arguments stack recompute thread
    """.split()
)
_FINGERPRINT = ("nan", "posinf", "neginf", "zero", "min", "max", "mean", "l2", "hash")


def _values(tensor: ForeignTensor, row: int, prints: Fingerprints) -> tuple[Any, ...]:
    """Return the columns of _FINGERPRINT: measured where there is data, as the dump says otherwise."""
    if row >= 0:
        counts = tuple(int(getattr(prints, name)[row]) for name in ("nan", "posinf", "neginf", "zero"))
        sizes = tuple(_finite(float(getattr(prints, name)[row])) for name in ("min", "max", "mean", "l2"))
        return (*counts, *sizes, int(prints.hash[row]))
    told = (tensor.min, tensor.max, tensor.mean, tensor.l2)
    # A statistic that is not finite tells that there is such an element, not how many: one is certain.
    nan = 1 if any(value is not None and math.isnan(value) for value in told) else None
    posinf = 1 if tensor.max is not None and tensor.max == math.inf else None
    neginf = 1 if tensor.min is not None and tensor.min == -math.inf else None
    return (nan, posinf, neginf, None, *(_finite(value) for value in told), tensor.digest)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def is_user_file(file: str) -> bool:
    """Tell whether a frame's file is the user's own, in a dump from any machine."""
    parts = file.replace("\\", "/").split("/")
    return not ({"site-packages", "dist-packages"} & set(parts)) and not any(
        part.startswith("python3.") for part in parts
    )
