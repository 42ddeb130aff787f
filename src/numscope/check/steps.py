"""One step of one rank as the check reads it: calls in the order in which they ended, with the state of their tensors."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from numscope.core.dtypes import FLOATS
from numscope.core.json_value import Json
from numscope.core.names import parse_call
from numscope.nonfinite.rule import Counts
from numscope.nonfinite.tracker import TrackedCall
from numscope.store.reader import Run

_COUNTS = ["tensor", "dtype", "elements", "nan", "posinf", "neginf", "min", "max", "mean", "l2", "shape"]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a slot of a call; `content` stands for its values where a dump does not tell which tensor it is."""

    slot: str
    tensor: int
    counts: Counts
    content: Hashable = None

    @property
    def key(self) -> Hashable:
        """The key of the tensor's values, the same in all slots that show them."""
        return self.tensor if self.content is None else self.content

    @property
    def is_gradient(self) -> bool:
        """Tell whether the tensor is the gradient of a parameter."""
        return self.slot.startswith("parameters_grad")


@dataclass(frozen=True)
class TensorFacts:
    """Dtype, shape and range of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    low: float | None  # of the finite elements
    high: float | None


@dataclass(eq=False)
class StoredCall:
    """A call with its measured slots."""

    order: int
    name: str
    kind: str
    module: str
    phase: str
    parent: int
    forward: int
    arguments: str | None
    stack: int
    recompute: bool
    inputs: list[StoredTensor] = field(default_factory=list)
    outputs: list[StoredTensor] = field(default_factory=list)
    last: int = -1  # order of the last call inside it, or its own
    depth: int = 0
    place: int = 0  # in the order in which calls ended
    unmeasured: str = ""  # the slot of the first input that was not measured
    wrong: TrackedCall | None = None  # the tracker's
    in_backward = False  # `recompute` marks a recomputation, the phase an operator of backward

    @property
    def op(self) -> str:
        """The operator, or the class of the module."""
        parsed = parse_call(self.name)
        return parsed.op.rpartition(".")[2] if parsed is not None else ""

    @property
    def nonfinite(self) -> list[StoredTensor]:
        """The outputs that are not finite."""
        return [tensor for tensor in self.outputs if not tensor.counts.clean]

    def constants(self) -> list[float]:
        """Return the numbers among the recorded non-tensor arguments."""
        found: list[float] = []
        _numbers(json.loads(self.arguments) if self.arguments else None, found)
        return found


@dataclass(frozen=True)
class StoredStep:
    """The calls of one step of one rank."""

    step: int
    rank: int
    calls: list[StoredCall]  # in the order in which they ended
    parameters: set[int]  # tensors that are a module's parameters
    scaling: set[int]  # stacks inside a loss scaler
    has_arguments: bool = True  # some dumps have none
    facts: dict[int, TensorFacts] = field(default_factory=dict)  # of each tensor

    @property
    def modules_only(self) -> bool:
        """Tell whether calls between modules were not recorded."""
        return not any(call.kind in ("api", "aten") for call in self.calls)

    @cached_property
    def by_order(self) -> dict[int, StoredCall]:
        """The calls by the order in which they began."""
        return {call.order: call for call in self.calls}


def dirty_steps(run: Run, rank: int) -> list[int]:
    """Return the steps of a rank in which some tensor has a non-finite element."""
    found: set[int] = set()
    for _, table in run.scan("tensors", ["step", "nan", "posinf", "neginf"], rank):
        bad = np.zeros(table.num_rows, bool)
        for name in ("nan", "posinf", "neginf"):
            bad |= pc.fill_null(table[name], 0).to_numpy() > 0
        found.update(np.unique(table["step"].to_numpy()[bad]).tolist())
    return sorted(found)


def has_counts(run: Run) -> bool:
    """Tell whether the run's tensors were measured at all."""
    return any(
        pc.any(pc.is_valid(table["nan"])).as_py() or pc.any(pc.is_valid(table["max"])).as_py()
        for _, table in run.scan("tensors", ["nan", "max"])
    )


def scaling_stacks(run: Run, rank: int) -> set[int]:
    """Return the stacks of a rank that lie inside torch's loss scaler."""
    table = run.stacks(rank)
    return {
        number
        for number, frames in zip(table["stack"].to_pylist(), table["frames"].to_pylist())
        if any((frame["file"] or "").endswith("grad_scaler.py") for frame in frames or ())
    }


def read_step(run: Run, step: int, rank: int, scaling: set[int] | None = None) -> StoredStep:
    """Return a step of a rank; `scaling` is what `scaling_stacks` gives."""
    tables = run.step_tables(step, rank)
    imported = bool(run.manifest.get("imported"))
    # Paddle has no version counters: nothing tells that a parameter or gradient was seen before.
    apart = imported or run.manifest.get("framework") == "paddle"
    counts, contents, facts = _counted(tables.tensors, imported, apart)
    calls: dict[int, StoredCall] = {}
    columns = ["order", "name", "kind", "module", "phase", "parent", "forward", "arguments", "stack", "recompute"]
    for row in rows_of(tables.calls, columns):
        order, name, kind, module, phase, parent, forward, arguments, stack, recompute = row
        calls[order] = StoredCall(
            order,
            name,
            kind=kind or "api",
            module=module or "",
            phase=phase or "forward",
            parent=_number(parent),
            forward=_number(forward),
            arguments=arguments,
            stack=_number(stack),
            recompute=bool(recompute),
            last=order,
        )
    parameters = set()
    for order, slot, tensor in rows_of(tables.slots, ["call", "slot", "tensor"]):
        call = calls.get(order)
        if call is not None and tensor is None and slot.startswith(("input", "kwargs")):
            call.unmeasured = call.unmeasured or slot
        if call is None or tensor is None or tensor not in counts:
            continue
        value = StoredTensor(slot, tensor, counts[tensor], contents.get(tensor))
        gives = slot.startswith("output") or (slot.startswith("parameters_grad") and call.phase == "backward")
        (call.outputs if gives else call.inputs).append(value)
        if slot.startswith("parameters."):
            parameters.add(tensor)
    has_arguments = not imported or tables.calls["arguments"].null_count < tables.calls.num_rows
    return StoredStep(step, rank, _by_end(calls), parameters, scaling or set(), has_arguments, facts)


def _by_end(calls: dict[int, StoredCall]) -> list[StoredCall]:
    """Return the calls in an order in which inner calls come before the call around them: they make its output."""
    stepping: StoredCall | None = None
    for order in sorted(calls):
        call = calls[order]
        if call.kind != "aten":
            stepping = call if call.kind == "optimizer" else None
        elif stepping is not None and call.parent < 0:  # an operator inside an optimizer's step
            stepping.last = order
    for order in sorted(calls, reverse=True):
        call = calls[order]
        outer = calls.get(call.parent)
        if outer is not None:
            outer.last = max(outer.last, call.last)
    for order in sorted(calls):
        outer = calls.get(calls[order].parent)
        calls[order].depth = outer.depth + 1 if outer is not None else 0
    _wait_for_gradients(calls)
    _wait_for_results(calls)
    ended = sorted(calls.values(), key=lambda call: (call.last, -call.depth, -call.order))
    for place, call in enumerate(ended):
        call.place = place
    return ended


def _wait_for_gradients(calls: dict[int, StoredCall]) -> None:
    """Let a module's backward part end with the call that made its outgoing gradient, also where that has no parent."""
    made: dict[int, int] = {}
    for order in sorted(calls):
        call = calls[order]
        if call.phase == "backward" and call.kind != "module":
            made.update((slot.tensor, order) for slot in call.outputs)
    for call in calls.values():
        if call.phase == "backward" and call.kind == "module":
            call.last = max(call.last, *(made.get(slot.tensor, -1) for slot in call.outputs), -1)


def _wait_for_results(calls: dict[int, StoredCall]) -> None:
    """A step of an optimizer that calls a closure, and a call whose gradients flow in two passes, end after calls that
    began later: tensors are numbered as they are measured, which tells when."""
    orders = sorted(calls)
    newest = [max((slot.tensor for slot in calls[order].inputs + calls[order].outputs), default=-1) for order in orders]
    for at, order in enumerate(orders):
        call = calls[order]
        if call.kind == "optimizer" or (call.phase == "backward" and call.kind not in ("aten", "module")):
            end = max((slot.tensor for slot in call.outputs), default=-1)
            after = at + 1
            while after < len(orders) and newest[after] < end:
                after += 1
            call.last = max(call.last, orders[after - 1])


def _counted(
    table: pa.Table, imported: bool, apart: bool
) -> tuple[dict[int, Counts], dict[int, Hashable], dict[int, TensorFacts]]:
    """Return each tensor's counts, the key of its content where a dump has a tensor of its own for each slot (`apart`),
    and the rest."""
    counts: dict[int, Counts] = {}
    facts: dict[int, TensorFacts] = {}
    contents: dict[int, Hashable] = {}
    for tensor, dtype, elements, nan, up, down, low, high, mean, l2, shape in rows_of(table, _COUNTS):
        facts[tensor] = TensorFacts(dtype or "", tuple(shape or ()), low, high)
        form = FLOATS.get(dtype)
        is_low = form is not None and low is not None and low <= -form.largest / 2
        # Other tools' statistics show by a smallest or largest number that there are some, not how many.
        found = counts[tensor] = Counts(nan or 0, up or 0, down or 0, elements or 0, is_low, not imported)
        if apart and not found.clean:
            told = (value if value is None or value == value else "nan" for value in (low, high, mean, l2))
            contents[tensor] = (dtype, tuple(shape or ()), nan, up, down, *told)
    return counts, contents, facts


def rows_of(table: pa.Table, columns: list[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of these columns, row by row."""
    return zip(*(table[name].to_pylist() for name in columns))


def _number(value: int | None) -> int:
    return -1 if value is None else value


def _numbers(value: Json, found: list[float]) -> None:
    if isinstance(value, dict):
        for item in value.values():
            _numbers(item, found)
    elif isinstance(value, list):
        for item in value:
            _numbers(item, found)
    elif (isinstance(value, str) and value in ("inf", "-inf", "nan")) or (
        isinstance(value, (int, float)) and not isinstance(value, bool)
    ):
        found.append(float(value))
