"""The facts of one rank in one step, as far as the rules between ranks ask: its updates, and a few of its calls.

A step of a large job has thousands of calls on each of a thousand ranks: what is kept of a rank is small, and only the calls
that a rule looks at become objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from numscope.core.job_files.layout import Placed
from numscope.core.names import parse_call
from numscope.core.operators import BETWEEN_RANKS, Rounding, operator
from numscope.store.joins import sketch_array
from numscope.store.reader import StepTables
from numscope.store.schema import TableRow

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
_JOINS = ("cat", "concat", "concatenate")


class Content(NamedTuple):
    """The known content of a tensor."""

    bits: int | None  # its hash
    elements: int
    l2: float | None
    is_plain: bool  # all elements are the same: two ranks may hold the same by chance
    zeros: int
    shape: tuple[int, ...]
    placement: str  # as DTensor declares it, or ""
    sketch: NDArray[np.float32] | None  # of gradients that reach an optimizer

    def apart(self, other: Content) -> float | None:
        """Return how far two tensors are apart, relative to the larger; None where that is not known."""
        if self.sketch is None or other.sketch is None or self.l2 is None or other.l2 is None:
            return None
        size = max(self.l2, other.l2)
        return float(np.linalg.norm(self.sketch.astype(np.float64) - other.sketch)) / size if size else 0.0


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

    settings: dict[str, object]
    of: dict[str, Trained] = field(default_factory=dict)


class Forward(NamedTuple):
    """A forward call that draws numbers, or joins tensors."""

    name: str
    module: str
    inputs: tuple[Content, ...]
    outputs: tuple[Content, ...]


class Group(NamedTuple):
    """A process group that a collective ran over."""

    ranks: tuple[int, ...]
    axis: str  # "tp", "dp" …, or "" where nothing names it


@dataclass
class StepFacts:
    """The facts of one rank in one step."""

    updates: list[Update] = field(default_factory=list)
    draws: list[Forward] = field(default_factory=list)
    joins: list[Forward] = field(default_factory=list)
    results: int | None = None  # a number for all that the forward calls computed; None where that is nothing
    data: tuple[int, ...] = ()  # hashes of what entered the model
    entry: str = ""  # name of the first call that shows that
    inputs: dict[str, int | None] = field(default_factory=dict)  # hash of what entered each module first
    buffers: dict[str, Content] = field(default_factory=dict)  # as the first call of their module found them
    groups: set[Group] = field(default_factory=set)
    collectives: set[str] = field(default_factory=set)  # operators of those in forward
    gathered: list[tuple[int | None, ...]] = field(default_factory=list)  # hashes of what each all-gather made
    works_with_others: bool = False
    embedded: set[int] = field(default_factory=set)  # hashes of the tables that embeddings looked up
    norms: set[str] = field(default_factory=set)  # paths of the modules that normalise
    declared: Mapping[str, Placed] = field(default_factory=dict)  # how parameters lie in the whole ones

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


_Slots = Sequence[tuple[str, Content]]


def step_facts(tables: StepTables, declared: Mapping[str, Placed]) -> StepFacts:
    """Return what the rules ask of one step of one rank, of whose parameters something may be declared."""
    facts = StepFacts(declared=declared)
    columns = ["order", "name", "kind", "module", "module_class", "phase", "parent", "arguments", "recompute"]
    rows = tables.calls.select(columns).to_pylist()
    for row in rows:
        name = parse_call(row["name"])
        row["op"] = name.op if name is not None and row["kind"] != "module" else ""
        row["forward"] = (
            row["phase"] == "forward" and not row["recompute"] and row["kind"] not in ("collective", "save")
        )
    facts.results = _results(tables, rows)
    chosen = [row for row in rows if _is_looked_at(row)]
    slots_of = _slots(tables, [row["order"] for row in chosen])
    for row in chosen:
        _note(facts, row, slots_of.get(row["order"], []))
    is_declared = any(one.placement for one in facts.begun().values())
    facts.works_with_others |= is_declared or bool(declared)
    return facts


def _is_looked_at(row: TableRow) -> bool:
    if row["kind"] in ("collective", "optimizer", "data"):
        return True
    op: str = row["op"]
    is_telling = op == "embedding" or op in _JOINS or op.endswith("_norm") or _draws(op)
    return bool(row["forward"]) and (row["kind"] == "module" or is_telling)


def _draws(op: str) -> bool:
    return bool(op) and operator(op).rounding is Rounding.RANDOM


def _note(facts: StepFacts, row: TableRow, slots: _Slots) -> None:
    kind, op, module = row["kind"], row["op"], row["module"] or ""
    inputs = tuple(one for slot, one in slots if slot.startswith(("input", "kwargs")))
    if kind == "collective":
        _note_collective(facts, row, slots)
    elif kind == "optimizer":
        facts.updates.append(_update(row, slots))
    elif kind == "data":
        facts.entry = facts.entry or row["name"]
        facts.data += tuple(one.bits for _, one in slots if one.bits is not None and not one.is_plain)
    elif kind == "module":
        if inputs:
            facts.inputs.setdefault(module, inputs[0].bits)
        for slot, one in slots:
            if slot.startswith("buffers."):
                facts.buffers.setdefault(f"{module}.{slot.removeprefix('buffers.')}", one)
    else:
        outputs = tuple(one for slot, one in slots if slot.startswith("output"))
        if op == "embedding":
            facts.embedded.update(one.bits for one in inputs if one.bits is not None)
        elif op in _JOINS:
            facts.joins.append(Forward(row["name"], module, inputs, outputs))
        elif _draws(op) and inputs:
            facts.draws.append(Forward(row["name"], module, inputs, outputs))
    if op.endswith("_norm") or (kind == "module" and "norm" in (row["module_class"] or "").lower()):
        facts.norms.add(module)


def _note_collective(facts: StepFacts, row: TableRow, slots: _Slots) -> None:
    facts.works_with_others = True
    said = json.loads(row["arguments"] or "{}").get("kwargs", {})
    if ranks := said.get("ranks") or range(int(said.get("group_size") or 0)):
        facts.groups.add(Group(tuple(ranks), axis_of(str(said.get("group") or ""))))
    if row["phase"] == "forward":
        facts.collectives.add(row["op"])
        if row["op"] == "all_gather":
            facts.gathered.append(tuple(one.bits for slot, one in slots if slot.startswith("output")))


def axis_of(description: str) -> str:
    """Return the short name of the axis that a process group's description names, or ""."""
    word = description.lower()
    return _AXES.get(word) or (word.removeprefix("mesh_") if word.startswith("mesh_") else "")


def _update(row: TableRow, slots: _Slots) -> Update:
    update = Update(json.loads(row["arguments"] or "{}").get("kwargs", {}))
    for slot, one in slots:
        head, _, name = slot.partition(".")
        if head == "state":
            name, _, what = name.rpartition(".")
            update.of.setdefault(name, Trained()).state[what] = one._replace(sketch=None)
        elif head in ("parameters", "parameters_grad", "output") and name:
            trained = update.of.setdefault(name, Trained())
            if head == "parameters":
                trained.before = one._replace(sketch=None)
            elif head == "output":
                trained.after = one._replace(sketch=None)
            else:
                trained.gradient = one
    return update


def _slots(tables: StepTables, orders: Sequence[int]) -> dict[int, list[tuple[str, Content]]]:
    """Return the slots of some calls that hold a measured tensor."""
    slots = tables.slots.filter(pc.is_valid(tables.slots["tensor"]))
    slots = slots.filter(pc.is_in(slots["call"], pa.array(orders, slots["call"].type)))
    tensors = tables.tensors.filter(pc.is_in(tables.tensors["tensor"], slots["tensor"].combine_chunks()))
    numbers = tensors["tensor"].to_pylist()
    contents = dict(zip(numbers, _contents(tensors)))
    found: dict[int, list[tuple[str, Content]]] = {}
    names = slots["slot"].cast(pa.string()).to_pylist()
    for call, slot, number in zip(slots["call"].to_pylist(), names, slots["tensor"].to_pylist()):
        if number in contents:
            found.setdefault(call, []).append((slot, contents[number]))
    return found


def _contents(tensors: pa.Table) -> Iterator[Content]:
    sketches, there = sketch_array(tensors["sketch"])
    columns = tensors.select(["hash", "elements", "l2", "min", "max", "zero", "shape", "placement"]).to_pydict()
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
            np.array(sketches[at], np.float32) if there[at] else None,
        )


def _results(tables: StepTables, rows: Sequence[TableRow]) -> int | None:
    """Return a number for the results of all forward calls that run no other, but for what arranges tensors between ranks."""
    parents = {row["parent"] for row in rows}
    names = {
        row["order"]: row["name"]
        for row in rows
        if row["forward"] and row["order"] not in parents and row["op"].partition(".")[0] not in BETWEEN_RANKS
    }
    slots = tables.slots.filter(pc.is_valid(tables.slots["tensor"]))
    slots = slots.filter(pc.starts_with(slots["slot"].cast(pa.string()), "output"))
    tensors = tables.tensors
    telling = pc.and_kleene(pc.is_valid(tensors["hash"]), pc.less(tensors["min"], tensors["max"]))
    bits = dict(zip(tensors["tensor"].filter(telling).to_pylist(), tensors["hash"].filter(telling).to_pylist()))
    made = tuple(
        (names[call], bits[tensor])
        for call, tensor in zip(slots["call"].to_pylist(), slots["tensor"].to_pylist())
        if call in names and tensor in bits
    )
    return hash(made) if made else None


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)")


def patterns(names: Sequence[str]) -> list[str]:
    """Return names with the numbers of layers as *, each once: blocks.*.norm.weight."""
    alone: dict[str, list[str]] = {}
    for name in names:
        alone.setdefault(_NUMBER.sub("*", name), []).append(name)
    return sorted(one if len(some) > 1 else some[0] for one, some in alone.items())
