"""One step of a run as objects, for the writers of other tools' formats."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from numscope.core.dtypes import AnyArray
from numscope.core.json_value import Json
from numscope.store.reader import Run
from numscope.store.schema import TableRow

_COLUMNS = """
    tensor dtype shape nan posinf neginf min max mean l2 hash shard key sampled
    """.split()


class Statistics(NamedTuple):
    """The statistics of a tensor."""

    max: float | None
    min: float | None
    mean: float | None
    l2: float | None


@dataclass(frozen=True)
class StepTensor:
    """A tensor of a run; None is a fact that the run does not have."""

    number: int
    dtype: str
    shape: tuple[int, ...]
    nan: int | None
    posinf: int | None
    neginf: int | None
    finite: Statistics  # of the finite elements
    hash: int | None
    load: Callable[[], AnyArray] | None

    def statistics(self) -> Statistics:
        """Return the statistics over all elements, non-finite ones included, as most tools compute them."""
        finite = self.finite
        if finite.min is None and not (self.nan or self.posinf or self.neginf):
            return Statistics(None, None, None, None)
        if self.nan:
            return Statistics(math.nan, math.nan, math.nan, math.nan)
        high = math.inf if self.posinf else (finite.max if finite.max is not None else -math.inf)
        low = -math.inf if self.neginf else (finite.min if finite.min is not None else math.inf)
        mean = finite.mean
        if self.posinf or self.neginf:
            mean = math.nan if self.posinf and self.neginf else (math.inf if self.posinf else -math.inf)
        return Statistics(high, low, mean, math.inf if self.posinf or self.neginf else finite.l2)


@dataclass
class StepCall:
    """A call of a run with its slots."""

    order: int
    name: str
    kind: str
    module: str
    phase: str
    parent: int | None
    forward: int | None
    arguments: dict[str, dict[str, Json]]  # "args" by position, "kwargs" by name
    frames: list[dict[str, str | int]]  # outermost first
    slots: list[tuple[str, StepTensor | None]] = field(default_factory=list)


def step_calls(run: Run, step: int, rank: int) -> list[StepCall]:
    """Return the calls of a step in the order in which they ended: inner calls before the call around them."""
    tables = run.step_tables(step, rank)
    stacks = {row["stack"]: row["frames"] for row in run.stacks(rank).to_pylist()}
    tensors = {row["tensor"]: _tensor(run, rank, row) for row in tables.tensors.select(_COLUMNS).to_pylist()}
    calls: dict[int, StepCall] = {}
    for row in tables.calls.to_pylist():
        calls[row["order"]] = StepCall(
            order=row["order"],
            name=row["name"],
            kind=row["kind"],
            module=row["module"] or "",
            phase=row["phase"],
            parent=row["parent"],
            forward=row["forward"],
            arguments=json.loads(row["arguments"]) if row["arguments"] else {},
            frames=stacks.get(row["stack"]) or [],
        )
    for row in tables.slots.select(["call", "slot", "tensor"]).to_pylist():
        if row["call"] in calls:
            calls[row["call"]].slots.append((row["slot"], tensors.get(row["tensor"])))
    parents = {order: call.parent for order, call in calls.items()}
    return [calls[order] for order in orders_by_end(parents)]


def _tensor(run: Run, rank: int, row: TableRow) -> StepTensor:
    shape = tuple(row["shape"] or ())
    load = None
    if row["shard"] is not None and not row["sampled"]:
        load = partial(run.array, rank, row["shard"], row["key"], row["dtype"], shape)
    finite = Statistics(row["max"], row["min"], row["mean"], row["l2"])
    return StepTensor(
        row["tensor"], row["dtype"], shape, row["nan"], row["posinf"], row["neginf"], finite, row["hash"], load
    )


def orders_by_end(parents: Mapping[int, int | None]) -> list[int]:
    """Return the calls, by their `order`, in the order in which they ended."""
    inner: dict[int | None, list[int]] = {}
    for order in sorted(parents):
        parent = parents[order]
        inner.setdefault(parent if parent in parents else None, []).append(order)
    ended: list[int] = []
    pending = [(order, False) for order in reversed(inner.get(None, []))]
    while pending:
        order, has_ended = pending.pop()
        if has_ended:
            ended.append(order)
        else:
            pending.append((order, True))
            pending += [(child, False) for child in reversed(inner.get(order, []))]
    return ended
