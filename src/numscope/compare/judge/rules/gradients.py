"""A gradient is off though every call before it agrees: which forward call may have parted it?

The autograd engine sums gradients between calls, unseen. A call that one side alone has (`detach`, a term of the loss)
or one whose outputs met again in forward, but not their gradients, is named before the gap is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numscope.compare.align.slots import OUTPUT
from numscope.compare.judge.findings import Finding, or_zero
from numscope.compare.judge.ledger import Ledger
from numscope.compare.judge.paths.dataflow import Flow, region
from numscope.compare.judge.reasons import GradientOnOneSide, Who, one_sided_call
from numscope.compare.load.side import Ints, Side
from numscope.core.operators import IDLE, Rounding


def forward_cause(ledger: Ledger, pair: int, row: int, error: float, explained: float) -> int | None:
    """Return the suspicion of a forward call for a gradient that is off though every call before it agrees."""
    lone = _lone_call(ledger, "detach")
    again = raise_again(ledger, pair) if lone is None else None
    if again is not None:
        return again
    lone = lone or _lone_call(ledger, "")
    return None if lone is None else _suspect_lone(ledger, pair, ledger.slot(row), lone, error, explained)


def cut(ledger: Ledger, pair: int, label: str, error: float, explained: float) -> int | None:
    """Return the suspicion of what keeps the gradient of a parameter from one side of an optimizer's step.

    It is the call that makes it on the other side, where that is paired; else the first that has a gradient for its
    input on one side alone.
    """
    lone = _lone_call(ledger, "detach")
    if lone is not None:
        return _suspect_lone(ledger, pair, f"parameters_grad.{label}", lone, error, explained)
    maker = _maker(ledger, pair, label)
    one_sided = _one_sided(ledger)
    if maker is None:
        found = one_sided[0] if one_sided else None
    else:
        found = maker if any(one.pair == maker.pair for one in one_sided) else None
    if found is None:
        return None
    return ledger.find(GradientOnOneSide(found.who), found.pair, error, explained, 0.0, slot=found.slot)


class LoneGradient(NamedTuple):
    """A paired backward call that has a gradient on one side alone."""

    pair: int
    slot: str
    who: Who


def lone_gradient(ledger: Ledger, pair: int) -> LoneGradient | None:
    """Return the backward call that has a gradient on one side alone, where a pair is given that gradient: a norm over
    all gradients."""
    sides: tuple[tuple[Side, Flow, Ints, Ints, Who], ...] = (
        (ledger.a, ledger.flow_a, ledger.slots.alone_a, ledger.alignment.target, "target"),
        (ledger.b, ledger.flow_b, ledger.slots.alone_b, ledger.alignment.reference, "reference"),
    )
    one_sided = _one_sided(ledger)
    for side, flow, alone, calls, who in sides:
        tensors = side.slots.tensor[alone[(side.slots.call[alone] == calls[pair]) & (flow.role[alone] != OUTPUT)]]
        makers = set(flow.producer[flow.same[tensors[tensors >= 0]]].tolist())
        for maker, slot, whose in one_sided:
            if whose == who and int(calls[maker]) in makers:
                return LoneGradient(maker, f"as {slot}", who)
    return None


def _maker(ledger: Ledger, pair: int, label: str) -> LoneGradient | None:
    """Return the pair of calls that makes the gradient of a parameter which one side alone has."""
    slot = ledger.a.book.numbers.get(f"parameters_grad.{label}", -1)
    sides: tuple[tuple[Side, Flow, Ints, Who], ...] = (
        (ledger.a, ledger.flow_a, ledger.alignment.target, "target"),
        (ledger.b, ledger.flow_b, ledger.alignment.reference, "reference"),
    )
    for side, flow, calls, who in sides:
        here = slice(side.slots.start[calls[pair]], side.slots.start[calls[pair] + 1])
        for tensor in side.slots.tensor[here][side.slots.slot[here] == slot].tolist():
            maker = int(flow.producer[flow.same[tensor]]) if tensor >= 0 else -1
            if maker >= 0 and maker in calls:
                return LoneGradient(int(np.flatnonzero(calls == maker)[0]), f"for {label}", who)
    return None


def _one_sided(ledger: Ledger) -> list[LoneGradient]:
    """Return the paired backward calls that have a gradient on one side alone, in order."""
    found = []
    sides: tuple[tuple[Side, Ints, Ints, Who], ...] = (
        (ledger.a, ledger.slots.alone_a, ledger.alignment.target, "target"),
        (ledger.b, ledger.slots.alone_b, ledger.alignment.reference, "reference"),
    )
    for side, rows, calls, who in sides:
        pair_of = {int(call): pair for pair, call in enumerate(calls.tolist())}
        backward = side.book.code("backward")
        for call, code in zip(side.slots.call[rows].tolist(), side.slots.slot[rows].tolist()):
            slot = side.book.words[code]
            inner = side.calls.phase[call] == backward and side.calls.children[call] == 0
            # An argument that is given by name here and by place there has a gradient under two names.
            if inner and slot.startswith("output") and call in pair_of and _has_more(ledger, pair_of[call], who):
                found.append(LoneGradient(pair_of[call], slot, who))
    return sorted(found)


def _has_more(ledger: Ledger, pair: int, who: str) -> bool:
    """Return whether a side's call has more outputs than its counterpart."""
    counts = []
    for side, flow, calls in (
        (ledger.a, ledger.flow_a, ledger.alignment.target),
        (ledger.b, ledger.flow_b, ledger.alignment.reference),
    ):
        here = slice(side.slots.start[calls[pair]], side.slots.start[calls[pair] + 1])
        counts.append(int((flow.role[here] == OUTPUT).sum()))
    return counts[0] > counts[1] if who == "target" else counts[1] > counts[0]


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


def further_use(ledger: Ledger, pair: int, row: int, error: float, explained: float) -> int | None:
    """Return the suspicion of a call that uses on one side alone what a gradient is of, where only that side's gradient is
    a sum of the engine's: a further term of the loss."""
    t, r = ledger.tensors(row)
    summed = ledger.flow_a.producer[t] < 0, ledger.flow_b.producer[r] < 0
    if summed[0] == summed[1]:
        return None
    side, flow, calls, partner = (
        (ledger.a, ledger.flow_a, ledger.alignment.target, ledger.partner_a)
        if summed[0]
        else (ledger.b, ledger.flow_b, ledger.alignment.reference, ledger.partner_b)
    )
    forward = int(side.calls.forward[calls[pair]])
    here = slice(side.slots.start[forward], side.slots.start[forward + 1]) if forward >= 0 else slice(0)
    of = flow.same[side.slots.tensor[here][(flow.role[here] == OUTPUT) & (side.slots.tensor[here] >= 0)]]
    given = np.flatnonzero((flow.role != OUTPUT) & (side.slots.tensor >= 0))
    users = side.slots.call[given[np.isin(flow.same[side.slots.tensor[given]], of)]]
    inner = users[(side.calls.children[users] == 0) & (partner[users] < 0)]
    lone = [int(x) for x in np.unique(inner) if ledger.operator_class(side, int(x)) not in (*IDLE, Rounding.DISCRETE)]
    if not lone or len(np.unique(users)) < 2:
        return None
    who = (lone[0], -1) if summed[0] else (-1, lone[0])
    return _suspect_lone(ledger, pair, ledger.slot(row), who, error, explained)


def heal_parts(ledger: Ledger, pair: int, error: float) -> None:
    """Withdraw suspicions of gradients that are parts of a sum, where the sum is right: `x` is used whole here, and in
    halves there."""
    flow, calls = ledger.flow_a, ledger.a.calls
    maker = int(calls.forward[ledger.alignment.target[pair]])
    for suspicion in ledger.suspicions:
        if maker < 0 or not suspicion.stands or suspicion.firm or suspicion.at < 0:
            continue
        if error > 0.05 * min(1.0, suspicion.last):  # an error that only fades on the way is no agreement
            continue
        part = int(ledger.alignment.target[suspicion.at])
        if ledger.phase(suspicion.at) != "backward" or calls.forward[part] < 0:
            continue
        begin = (
            x for given in flow.inputs(int(calls.forward[part])) for x in region(flow, given, ledger.partner_a).frontier
        )
        if any(flow.producer[x] == maker for x in begin):
            suspicion.healed_at = max(suspicion.healed_at, ledger.order(pair))


def _lone_call(ledger: Ledger, wanted: str) -> tuple[int, int] | None:
    """Return the first forward call that one side alone has, of this name, or "" for any that changes numbers or
    gradients; as (target row, reference row)."""
    sides = ((ledger.a, ledger.alignment.alone_target), (ledger.b, ledger.alignment.alone_reference))
    for place, (side, rows) in enumerate(sides):
        forward = side.book.code("forward")
        for row in rows.tolist():
            name = side.book.words[side.calls.op[row]]
            active = ledger.operator_class(side, row) not in (*IDLE, Rounding.DISCRETE)
            chosen = name == wanted if wanted else active
            if chosen and side.calls.phase[row] == forward and side.calls.children[row] == 0:
                return (row, -1) if place == 0 else (-1, row)
    return None


def _suspect_lone(ledger: Ledger, pair: int, slot: str, lone: tuple[int, int], error: float, explained: float) -> int:
    name = ledger.a.calls.name(int(ledger.alignment.target[pair]))
    return ledger.suspect(
        Finding(
            one_sided_call(lone[0], name),
            -1,
            *lone,
            ledger.a.step,
            ledger.a.rank,
            ledger.order(pair) - 0.5,
            error,
            explained,
            0.0,
            slot=slot,
        ),
        firm=False,
        at=pair,
    )
