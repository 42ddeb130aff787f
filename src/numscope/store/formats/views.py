"""One step of a run as objects, for the writers of other tools' formats, which go call by call."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from numscope.store.reader import Run

_NARROW = """
    tensor dtype shape elements nan posinf neginf min max mean l2 hash shard key sampled
    """.split()


@dataclass(frozen=True)
class TensorView:
    """What a run knows of a tensor."""

    number: int
    dtype: str
    shape: tuple[int, ...]
    row: dict[str, Any]
    load: Callable[[], NDArray[Any]] | None

    def statistics(self) -> tuple[float | None, float | None, float | None, float | None]:
        """Return (max, min, mean, l2) over all elements, as tools that don't set non-finite ones apart have them."""
        row = self.row
        nan, posinf, neginf = ((row[name] or 0) for name in ("nan", "posinf", "neginf"))
        if row["min"] is None and not (nan or posinf or neginf):
            return None, None, None, None
        if nan:
            return math.nan, math.nan, math.nan, math.nan
        high = math.inf if posinf else (row["max"] if row["max"] is not None else -math.inf)
        low = -math.inf if neginf else (row["min"] if row["min"] is not None else math.inf)
        mean = row["mean"]
        if posinf or neginf:
            mean = math.nan if posinf and neginf else (math.inf if posinf else -math.inf)
        return high, low, mean, math.inf if posinf or neginf else row["l2"]


@dataclass
class CallView:
    """A call with its slots."""

    order: int
    name: str
    kind: str
    module: str
    module_class: str
    phase: str
    parent: int | None
    forward: int | None
    arguments: dict[str, Any]
    frames: list[dict[str, Any]]  # outermost first
    slots: list[tuple[str, TensorView | None]] = field(default_factory=list)


def step_calls(run: Run, step: int, rank: int) -> list[CallView]:
    """Return the calls of a step in the order in which they ended: inner calls before the one they belong to."""
    tables = run.step_tables(step, rank)
    stacks = {row["stack"]: row["frames"] for row in run.stacks(rank).to_pylist()}
    tensors: dict[int, TensorView] = {}
    for row in tables.tensors.select(list(_NARROW)).to_pylist():
        tensors[row["tensor"]] = _tensor(run, rank, row)
    calls: dict[int, CallView] = {}
    for row in tables.calls.to_pylist():
        calls[row["order"]] = CallView(
            row["order"],
            row["name"],
            row["kind"],
            row["module"] or "",
            row["module_class"] or "",
            row["phase"],
            row["parent"],
            row["forward"],
            json.loads(row["arguments"]) if row["arguments"] else {},
            stacks.get(row["stack"]) or [],
        )
    for row in tables.slots.select(["call", "slot", "tensor"]).to_pylist():
        if row["call"] in calls:
            calls[row["call"]].slots.append((row["slot"], tensors.get(row["tensor"])))
    return _by_end(calls)


def _tensor(run: Run, rank: int, row: dict[str, Any]) -> TensorView:
    shape = tuple(row["shape"] or ())
    load = None
    if row["shard"] is not None and not row["sampled"]:
        shard, key, dtype = row["shard"], row["key"], row["dtype"]

        def load() -> NDArray[Any]:
            return run.array(rank, shard, key, dtype, shape)

    return TensorView(row["tensor"], row["dtype"], shape, row, load)


def _by_end(calls: dict[int, CallView]) -> list[CallView]:
    inner: dict[int | None, list[int]] = {}
    for order in sorted(calls):
        parent = calls[order].parent
        inner.setdefault(parent if parent in calls else None, []).append(order)
    done: list[CallView] = []
    pending: list[tuple[int, bool]] = [(order, False) for order in reversed(inner.get(None, []))]
    while pending:
        order, ended = pending.pop()
        if ended:
            done.append(calls[order])
            continue
        pending.append((order, True))
        pending += [(child, False) for child in reversed(inner.get(order, []))]
    return done
