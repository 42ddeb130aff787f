"""Remembers calls that one side alone has and that write to parameters after an optimizer's step.

Weights are rounded, clamped or averaged once the optimizer is done. It shows in the next step, whose rows are others: so
such a call is remembered for one step.
"""

from __future__ import annotations

import numpy as np

from numscope.compare.align.slots import OUTPUT
from numscope.compare.judge.facts import Facts
from numscope.compare.judge.findings import ErrorSizes, Finding
from numscope.compare.judge.paths.dataflow import Flow
from numscope.core.names import label_of


def late_writes(facts: Facts) -> dict[str, Finding]:
    """Return the calls that write over an optimizer's results and have no counterpart, by the parameter's name."""
    found: dict[str, Finding] = {}
    for one in facts.sides:
        updated = _updated_parameters(one.flow) if len(one.lone_calls) else {}
        for call in one.lone_calls.tolist() if updated else ():
            name = next((updated[tensor] for tensor in one.flow.inputs(call) if tensor in updated), None)
            if name is None or name in found or not one.side.writes_in_place(call):
                continue
            sizes = ErrorSizes(_distance_written(one.flow, call), 0.0)
            found[name] = facts.lone_finding(one.lone(call), "the next step", sizes, name)
    return found


def _updated_parameters(flow: Flow) -> dict[int, str]:
    """Return the names (`parameters.` and the path) of the tensors that optimizers have made."""
    slots, side = flow.side.slots, flow.side
    optimizers = side.calls.kind[slots.call] == side.book.code("optimizer")
    rows = np.flatnonzero(optimizers & (flow.role == OUTPUT) & (slots.tensor >= 0))
    names = (label_of(side.book.words[slots.slot[row]]) for row in rows.tolist())
    return {int(flow.same[slots.tensor[row]]): f"parameters.{name}" for row, name in zip(rows.tolist(), names)}


def _distance_written(flow: Flow, call: int) -> float:
    """Return how far the tensor that a call has written is from the one that was there, relative to that."""
    tensors, slots = flow.side.tensors, flow.side.slots
    here = slice(slots.start[call], slots.start[call + 1])
    made = slots.tensor[here][flow.role[here] == OUTPUT]
    before, after = flow.inputs(call)[0], int(made[0]) if len(made) else -1
    if after < 0 or not (tensors.sketched[before] and tensors.sketched[after]):
        return float("nan")
    norm = float(tensors.l2[before])
    return float(np.linalg.norm(tensors.sketch[after] - tensors.sketch[before]) / norm) if norm > 0 else 1.0
