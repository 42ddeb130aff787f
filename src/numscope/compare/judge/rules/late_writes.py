"""What is written to parameters after an optimizer's step, by calls that one side alone has: the next step begins with it.

Weights that are rounded, clamped or averaged once the optimizer is done. It shows in the step after, of which the rows are
others: so what is known of such a call is kept for one step.
"""

from __future__ import annotations

import numpy as np

from numscope.compare.align.slots import OUTPUT
from numscope.compare.judge.findings import Finding
from numscope.compare.judge.ledger import Ledger
from numscope.compare.judge.paths.dataflow import Flow
from numscope.compare.judge.reasons import one_sided_call


def late_writes(ledger: Ledger) -> dict[str, Finding]:
    """Return the calls that write over what an optimizer has left and have no counterpart, by the parameter's name."""
    found: dict[str, Finding] = {}
    for flow, alone, is_target in (
        (ledger.flow_a, ledger.alignment.alone_target, True),
        (ledger.flow_b, ledger.alignment.alone_reference, False),
    ):
        left = _left(flow) if len(alone) else {}
        for call in alone.tolist() if left else ():
            label = next((left[tensor] for tensor in flow.inputs(call) if tensor in left), None)
            if label is None or label in found or not flow.side.writes_in_place(call):
                continue
            order = float(call) if is_target else ledger.place_of_reference(call)
            target, reference = (call, -1) if is_target else (-1, call)
            found[label] = Finding(
                one_sided_call(target, "the next step"),
                -1,
                target,
                reference,
                ledger.a.step,
                ledger.a.rank,
                order,
                _moved(flow, call),
                0.0,
                0.0,
                slot=label,
            )
    return found


def _left(flow: Flow) -> dict[int, str]:
    """Return the parameters that optimizers have left, by their tensors: `parameters.` and the name."""
    slots, side = flow.side.slots, flow.side
    optimizers = side.calls.kind[slots.call] == side.book.code("optimizer")
    rows = np.flatnonzero(optimizers & (flow.role == OUTPUT) & (slots.tensor >= 0))
    names = (side.book.words[slots.slot[row]].partition(".")[2] for row in rows.tolist())
    return {int(flow.same[slots.tensor[row]]): f"parameters.{name}" for row, name in zip(rows.tolist(), names)}


def _moved(flow: Flow, call: int) -> float:
    """Return how far what a call has written is from what was there."""
    side = flow.side
    here = slice(side.slots.start[call], side.slots.start[call + 1])
    made = side.slots.tensor[here][flow.role[here] == OUTPUT]
    before, after = flow.inputs(call)[0], int(made[0]) if len(made) else -1
    if after < 0 or not (side.tensors.sketched[before] and side.tensors.sketched[after]):
        return float("nan")
    norm = float(side.tensors.l2[before])
    return float(np.linalg.norm(side.tensors.sketch[after] - side.tensors.sketch[before]) / norm) if norm > 0 else 1.0
