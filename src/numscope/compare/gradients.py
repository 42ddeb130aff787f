"""A gradient is off though every call before it agrees: which forward call may have parted it?

The autograd engine sums gradients between calls, unseen. A call that one side alone has (`detach`, a term of the loss)
or one whose outputs met again in forward, but not their gradients, is named before the gap is.
"""

from __future__ import annotations

import numpy as np

from numscope.compare import operators as op
from numscope.compare.findings import Finding, or_zero
from numscope.compare.ledger import Ledger


def forward_cause(ledger: Ledger, pair: int, row: int, error: float, explained: float) -> int | None:
    """Return the suspicion of a forward call for a gradient that is off though every call before it agrees."""
    lone = _lone_call(ledger, "detach")
    again = raise_again(ledger, pair) if lone is None else None
    if again is not None:
        return again
    lone = lone or _lone_call(ledger, "")
    return None if lone is None else _suspect_lone(ledger, pair, row, lone, error, explained)


def cut(ledger: Ledger, row: int, error: float, explained: float) -> int | None:
    """Return the suspicion of what keeps a parameter's gradient from one side: the first call that has one for its input
    on one side alone."""
    lone = _lone_call(ledger, "detach")
    if lone is not None:
        return _suspect_lone(ledger, int(ledger.slots.pair[row]), row, lone, error, explained)
    found = []
    sides = ((ledger.a, ledger.slots.alone_a, "target"), (ledger.b, ledger.slots.alone_b, "reference"))
    for side, rows, who in sides:
        calls = side.slots.call[rows]
        made = np.array([side.book.words[code].startswith("output") for code in side.slots.slot[rows]], dtype=np.bool_)
        backward = made & (side.calls.phase[calls] == side.book.code("backward"))
        inner = backward & (side.calls.children[calls] == 0)
        for at, slot in zip(calls[inner].tolist(), side.slots.slot[rows][inner].tolist()):
            pair = ledger.pair_of(at if who == "target" else int(ledger.partner_b[at]))
            if pair >= 0:
                found.append((ledger.order(pair), pair, side.book.words[slot], who))
    if not found:
        return None
    _, pair, slot, who = min(found)
    return ledger.find("call", pair, error, explained, 0.0, slot=slot, note=f"gradient of the {who}")


def raise_again(ledger: Ledger, pair: int) -> int | None:
    """Raise a withdrawn suspicion again: two ways that met in forward, but whose gradients part at the same call.

    `h - h.sum()` and `h - h.mean()` come to the same where h has no mean, and have gradients that do not.
    """
    for number, suspicion in enumerate(ledger.suspicions):
        if suspicion.stands or suspicion.finding.pair < 0:
            continue
        for behind in ledger.backward_of.get(suspicion.finding.target, ()):
            came_in, out = ledger.errors.error_in[behind], ledger.errors.error_out[behind]
            least = 32 * max(or_zero(came_in), float(ledger.errors.roundoff[behind]))
            if ledger.order(behind) < ledger.order(pair) and out > least:
                suspicion.firm = True
                ledger.inherit(behind, number)
                return number
    return None


def _lone_call(ledger: Ledger, wanted: str) -> tuple[int, int] | None:
    """Return the first forward call that one side alone has, of this name, or "" for any that changes numbers or
    gradients; as (target row, reference row)."""
    sides = ((ledger.a, ledger.alignment.alone_target), (ledger.b, ledger.alignment.alone_reference))
    for place, (side, rows) in enumerate(sides):
        forward = side.book.code("forward")
        for row in rows.tolist():
            name = side.book.words[side.calls.op[row]]
            active = ledger.operator_class(side, row) not in (*op.IDLE, op.DISCRETE)
            chosen = name == wanted if wanted else active
            if chosen and side.calls.phase[row] == forward and side.calls.children[row] == 0:
                return (row, -1) if place == 0 else (-1, row)
    return None


def _suspect_lone(ledger: Ledger, pair: int, row: int, lone: tuple[int, int], error: float, explained: float) -> int:
    kind = "extra" if lone[0] >= 0 else "missing"
    name = ledger.a.calls.name(int(ledger.alignment.target[pair]))
    return ledger.suspect(
        Finding(
            kind, -1, *lone, ledger.a.step, ledger.a.rank, ledger.order(pair) - 0.5, error, explained, 0.0,
            slot=ledger.slot(row), note=name,
        ),
        firm=True,
    )  # fmt: skip
