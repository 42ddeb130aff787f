"""The facts of one rank in one step, as far as the rules between ranks ask: its updates, calls, buffers and groups."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from numscope.core.job_files.layout import Placed
from numscope.core.names import parse_call
from numscope.core.operators import Rounding, operator
from numscope.store.joins import sketch_array
from numscope.store.reader import StepTables
from numscope.store.schema import TableRow

_COLUMNS = ["hash", "elements", "l2", "min", "max", "zero", "shape", "placement"]
# Megatron names its groups so; a device mesh says mesh_ and the dimension's own name.
_AXES = {
    "tensor_model_parallel_group": "tp",
    "tensor_parallel_group": "tp",
    "data_parallel_group": "dp",
    "data_parallel_group_with_cp": "dp",
    "context_parallel_group": "cp",
    "pipeline_model_parallel_group": "pp",
    "expert_model_parallel_group": "ep",
}


class Content(NamedTuple):
    """The known content of a tensor."""

    bits: int | None  # its hash
    elements: int
    l2: float | None
    is_plain: bool  # all elements are the same: two ranks may hold the same by chance
    zeros: int
    shape: tuple[int, ...]
    placement: str  # as DTensor declares it, or ""
    sketch: NDArray[np.float64] | None

    def apart(self, other: Content) -> float | None:
        """Return how far two tensors are apart, relative to the larger; None where that is not known."""
        if self.sketch is None or other.sketch is None or self.l2 is None or other.l2 is None:
            return None
        size = max(self.l2, other.l2)
        return float(np.linalg.norm(self.sketch - other.sketch)) / size if size else 0.0


@dataclass
class Trained:
    """One parameter in one optimizer's step."""

    before: Content | None = None
    after: Content | None = None
    gradient: Content | None = None
    state: dict[str, Content] = field(default_factory=dict)


@dataclass
class Update:
    """One optimizer's step."""

    settings: dict[str, Any]
    of: dict[str, Trained] = field(default_factory=dict)


class Forward(NamedTuple):
    """A forward call that draws numbers or is a module's, or that runs no other call."""

    name: str
    kind: str
    op: str
    module: str
    is_leaf: bool
    inputs: tuple[Content, ...]
    outputs: tuple[Content, ...]
    buffers: dict[str, Content]


class Group(NamedTuple):
    """A process group that a collective ran over."""

    ranks: tuple[int, ...]
    axis: str  # "tp", "dp" …, or "" where nothing names it


@dataclass
class StepFacts:
    """The facts of one rank in one step."""

    updates: list[Update] = field(default_factory=list)
    forward: list[Forward] = field(default_factory=list)
    data: tuple[int, ...] = ()  # hashes of what entered the model
    groups: set[Group] = field(default_factory=set)
    collectives: set[str] = field(default_factory=set)  # operators of those in forward
    works_with_others: bool = False
    embedded: set[int] = field(default_factory=set)  # hashes of the tables that embeddings looked up
    declared: Mapping[str, Placed] = field(default_factory=dict)  # how parameters lie in the whole ones
    norms: set[str] = field(default_factory=set)  # paths of the modules that normalise

    def begun(self) -> dict[str, Content]:
        """Return the parameters as the first update of each found them."""
        found: dict[str, Content] = {}
        for update in self.updates:
            for name, trained in update.of.items():
                if trained.before is not None:
                    found.setdefault(name, trained.before)
        return found

    def left(self) -> dict[str, Content]:
        """Return the parameters as the last update of each left them."""
        return {
            name: trained.after
            for update in self.updates
            for name, trained in update.of.items()
            if trained.after is not None
        }


def step_facts(tables: StepTables, declared: Mapping[str, Placed]) -> StepFacts:
    """Return what the rules ask of one step of one rank, of whose parameters something may be declared."""
    facts = StepFacts(declared=declared)
    slots_of = _slots(tables)
    columns = ["order", "name", "kind", "module", "module_class", "phase", "parent", "arguments", "recompute"]
    rows = tables.calls.select(columns).to_pylist()
    parents = {row["parent"] for row in rows}
    for row in rows:
        slots = slots_of.get(row["order"], [])
        kind, phase = row["kind"], row["phase"]
        if kind == "collective":
            facts.works_with_others = True
            _note_collective(facts, row, phase)
        elif kind == "optimizer":
            facts.updates.append(_update(row, slots))
        elif kind == "data":
            facts.data += tuple(one.bits for _, one in slots if one.bits is not None and not one.is_plain)
        elif phase == "forward" and not row["recompute"]:
            facts.forward.append(_forward(row, slots, row["order"] not in parents, facts))
    is_declared = any(one.placement for update in facts.updates for one in _parameters(update))
    facts.works_with_others |= is_declared or bool(declared)
    return facts


def _parameters(update: Update) -> Iterator[Content]:
    return (trained.before for trained in update.of.values() if trained.before is not None)


def _note_collective(facts: StepFacts, row: TableRow, phase: str) -> None:
    said = json.loads(row["arguments"] or "{}").get("kwargs", {})
    if ranks := said.get("ranks") or range(int(said.get("group_size") or 0)):
        facts.groups.add(Group(tuple(ranks), axis_of(str(said.get("group") or ""))))
    name = parse_call(row["name"])
    if name is not None and phase == "forward":
        facts.collectives.add(name.op)


def axis_of(description: str) -> str:
    """Return the short name of the axis that a process group's description names, or ""."""
    word = description.lower()
    return _AXES.get(word) or (word.removeprefix("mesh_") if word.startswith("mesh_") else "")


def _forward(row: TableRow, slots: Sequence[tuple[str, Content]], is_leaf: bool, facts: StepFacts) -> Forward:
    name = parse_call(row["name"])
    op = name.op if name is not None and row["kind"] != "module" else ""
    inputs = tuple(one for slot, one in slots if slot.startswith(("input", "kwargs")))
    if op.endswith("_norm") or (row["kind"] == "module" and "norm" in (row["module_class"] or "").lower()):
        facts.norms.add(row["module"] or "")
    if op == "embedding":
        facts.embedded.update(one.bits for one in inputs if one.bits is not None)
    return Forward(
        row["name"],
        row["kind"],
        op,
        row["module"] or "",
        is_leaf,
        inputs,
        tuple(one for slot, one in slots if slot.startswith("output") and ".buffers." not in slot),
        {slot.removeprefix("buffers."): one for slot, one in slots if slot.startswith("buffers.")},
    )


def draws(call: Forward) -> bool:
    """Tell whether a call draws numbers to change what it is given: a dropout."""
    return operator(call.op).rounding is Rounding.RANDOM and bool(call.inputs)


def _update(row: TableRow, slots: Sequence[tuple[str, Content]]) -> Update:
    update = Update(json.loads(row["arguments"] or "{}").get("kwargs", {}))
    for slot, one in slots:
        head, _, name = slot.partition(".")
        if head == "state":
            name, _, what = name.rpartition(".")
            update.of.setdefault(name, Trained()).state[what] = one
        elif head in ("parameters", "parameters_grad", "output") and name:
            trained = update.of.setdefault(name, Trained())
            if head == "parameters":
                trained.before = one
            elif head == "output":
                trained.after = one
            else:
                trained.gradient = one
    return update


def _slots(tables: StepTables) -> dict[int, list[tuple[str, Content]]]:
    """Return the slots of each call that hold a measured tensor."""
    contents = list(_contents(tables.tensors))
    numbers = {number: at for at, number in enumerate(tables.tensors["tensor"].to_pylist())}
    found: dict[int, list[tuple[str, Content]]] = {}
    slots = tables.slots.filter(pc.is_valid(tables.slots["tensor"]))
    names = slots["slot"].cast(pa.string()).to_pylist()
    for call, slot, number in zip(slots["call"].to_pylist(), names, slots["tensor"].to_pylist()):
        if number in numbers:
            found.setdefault(call, []).append((slot, contents[numbers[number]]))
    return found


def _contents(tensors: pa.Table) -> Iterator[Content]:
    sketches, there = sketch_array(tensors["sketch"])
    columns = tensors.select(_COLUMNS).to_pydict()
    for at, bits in enumerate(columns["hash"]):
        low = columns["min"][at]
        yield Content(
            bits,
            columns["elements"][at] or 0,
            columns["l2"][at],
            low is None or low == columns["max"][at],
            columns["zero"][at] or 0,
            tuple(columns["shape"][at] or ()),
            columns["placement"][at] or "",
            sketches[at].astype(np.float64) if there[at] else None,
        )


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)")


def patterns(names: Sequence[str]) -> list[str]:
    """Return names with the numbers of layers as *, each once: blocks.*.norm.weight."""
    whole = {_NUMBER.sub("*", name) for name in names}
    alone = {one: [name for name in names if _NUMBER.sub("*", name) == one] for one in whole}
    return sorted(one if len(some) > 1 else some[0] for one, some in alone.items())
