"""Finds the forward call that is to blame for a gradient which is off though every call before it agrees.

The autograd engine sums gradients between calls, unrecorded. A call that one side alone has (`detach`, a term of the loss)
or one whose outputs met again in forward, but not their gradients, is named before the gap is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from numscope.compare.align.slots import OUTPUT
from numscope.compare.judge.facts import Facts, OneSide
from numscope.compare.judge.findings import ErrorSizes, Finding, LoneCall, Who, or_zero
from numscope.compare.judge.paths.dataflow import leads_to, region
from numscope.compare.judge.reasons import GradientOnOneSide
from numscope.compare.judge.state import State
from numscope.core.operators import IDLE, Rounding

_CUTS_GRADIENT = "detach"
_PARTS_AGAIN = 32  # times the error that came in, or unit roundoffs
_FADED = 0.05  # of an error: an error that only fades on the way is no agreement


class LoneGradient(NamedTuple):
    """A paired backward call that has a gradient on one side alone."""

    pair: int
    slot: str
    who: Who


def forward_cause(state: State, pair: int, row: int, sizes: ErrorSizes) -> int | None:
    """Return the suspicion of a forward call for a gradient that is off though every call before it agrees."""
    lone = _detach_on_one_side(state.facts)
    if lone is None:
        again = suspect_again(state, pair)
        if again is not None:
            return again
        lone = _computing_on_one_side(state.facts)
    return None if lone is None else _suspect_lone(state, pair, state.facts.slot(row), lone, sizes)


def cause_of_missing_gradient(state: State, pair: int, label: str, sizes: ErrorSizes) -> int | None:
    """Return the suspicion of the call that keeps a parameter's gradient from one side of an optimizer's step.

    It is the call that makes it on the other side, where that is paired; else the first that has a gradient for its
    input on one side alone.
    """
    lone = _detach_on_one_side(state.facts)
    if lone is not None:
        return _suspect_lone(state, pair, f"parameters_grad.{label}", lone, sizes)
    producer = _producer_of_gradient(state.facts, pair, label)
    one_sided = _one_sided_gradients(state.facts)
    if producer is None:
        found = one_sided[0] if one_sided else None
    else:
        found = producer if any(one.pair == producer.pair for one in one_sided) else None
    if found is None:
        return None
    return state.blame(GradientOnOneSide(found.who), found.pair, sizes, found.slot)


def lone_gradient(facts: Facts, pair: int) -> LoneGradient | None:
    """Return the backward call whose gradient, on one side alone, a pair is given: a norm over all gradients."""
    one_sided = _one_sided_gradients(facts)
    for one in facts.sides:
        alone = one.lone_slots[(one.side.slots.call[one.lone_slots] == one.calls[pair])]
        tensors = one.side.slots.tensor[alone[one.flow.role[alone] != OUTPUT]]
        producers = set(one.flow.producer[one.flow.same[tensors[tensors >= 0]]].tolist())
        for gradient in one_sided:
            if gradient.who == one.who and int(one.calls[gradient.pair]) in producers:
                return gradient._replace(slot=f"as {gradient.slot}")
    return None


def _producer_of_gradient(facts: Facts, pair: int, label: str) -> LoneGradient | None:
    """Return the pair of calls that makes the gradient of a parameter which one side alone has."""
    slot = facts.a.book.numbers.get(f"parameters_grad.{label}", -1)
    for one in facts.sides:
        slots, call = one.side.slots, one.calls[pair]
        here = slice(slots.start[call], slots.start[call + 1])
        for tensor in slots.tensor[here][slots.slot[here] == slot].tolist():
            producer = int(one.flow.producer[one.flow.same[tensor]]) if tensor >= 0 else -1
            if producer >= 0 and one.pair_of[producer] >= 0:
                return LoneGradient(int(one.pair_of[producer]), f"for {label}", one.who)
    return None


def _one_sided_gradients(facts: Facts) -> list[LoneGradient]:
    """Return the paired backward calls that have a gradient on one side alone, in order."""
    found = []
    for one in facts.sides:
        slots, calls, backward = one.side.slots, one.side.calls, one.side.book.code("backward")
        for row in one.lone_slots.tolist():
            call, slot = int(slots.call[row]), one.side.book.words[slots.slot[row]]
            pair = int(one.pair_of[call])
            is_leaf = calls.phase[call] == backward and calls.children[call] == 0
            # An argument that is given by name here and by place there has a gradient under two names.
            if is_leaf and slot.startswith("output") and pair >= 0 and _has_more_outputs(facts, pair, one.who):
                found.append(LoneGradient(pair, slot, one.who))
    return sorted(found)


def _has_more_outputs(facts: Facts, pair: int, who: Who) -> bool:
    """Return whether a side's call has more outputs than its counterpart."""
    counts = {}
    for one in facts.sides:
        start, call = one.side.slots.start, one.calls[pair]
        counts[one.who] = int((one.flow.role[start[call] : start[call + 1]] == OUTPUT).sum())
    return counts[who] == max(counts.values()) > min(counts.values())


def suspect_again(state: State, pair: int) -> int | None:
    """Confirm a withdrawn suspicion: two ways that met in forward, but whose gradients part at the same call.

    `h - h.sum()` and `h - h.mean()` come to the same where h has no mean, and have gradients that do not.
    """
    facts = state.facts
    for number, suspicion in enumerate(state.suspicions):
        if suspicion.stands or suspicion.finding.pair < 0:
            continue
        for backward in facts.backward_pairs.get(suspicion.finding.target, ()):
            came_in, out = facts.errors.error_in[backward], facts.errors.error_out[backward]
            least = _PARTS_AGAIN * max(or_zero(came_in), float(facts.errors.roundoff[backward]))
            if facts.order(backward) < facts.order(pair) and out > least:
                suspicion.confirm()
                state.inherit(backward, number)
                return number
    return None


def further_use(state: State, pair: int, row: int, sizes: ErrorSizes) -> int | None:
    """Return the suspicion of a further use of a tensor, a term of the loss, on the side whose gradient is a sum.

    A gradient that no recorded call made is a sum of the engine's: where the other side's is none, a call that only the
    one side has uses what the gradient is of.
    """
    facts = state.facts
    summing = [
        (one, status) for (one, status), tensor in zip(state.sides, facts.tensors(row)) if one.flow.producer[tensor] < 0
    ]
    if len(summing) != 1:
        return None
    ((one, status),) = summing
    calls, slots, flow = one.side.calls, one.side.slots, one.flow
    forward = int(calls.forward[one.calls[pair]])
    here = slice(slots.start[forward], slots.start[forward + 1]) if forward >= 0 else slice(0)
    differentiated = flow.same[slots.tensor[here][(flow.role[here] == OUTPUT) & (slots.tensor[here] >= 0)]]
    given = np.flatnonzero((flow.role != OUTPUT) & (slots.tensor >= 0))
    users = np.unique(slots.call[given[np.isin(flow.same[slots.tensor[given]], differentiated)]])
    lone = [int(x) for x in users[(calls.children[users] == 0) & (status.partner[users] < 0)]]
    lone = [x for x in lone if _is_active(facts, one, x)]
    if not lone or len(users) < 2:
        return None
    return _suspect_lone(state, pair, facts.slot(row), one.lone(lone[0]), sizes)


def withdraw_parts_of_sum(state: State, pair: int, error: float) -> None:
    """Withdraw suspicions of gradients that are parts of a sum, where the sum is right: `x` is used whole here, and in
    halves there."""
    facts, flow, calls = state.facts, state.facts.flow_a, state.facts.a.calls
    producer = int(calls.forward[facts.alignment.target[pair]])
    for suspicion in state.suspicions:
        if producer < 0 or not suspicion.stands or suspicion.firm or suspicion.at < 0:
            continue
        if error > _FADED * min(1.0, suspicion.last_error):
            continue
        part = int(facts.alignment.target[suspicion.at])
        if facts.phase(suspicion.at) != "backward" or calls.forward[part] < 0:
            continue
        given = flow.inputs(int(calls.forward[part]))
        frontier = (x for tensor in given for x in region(flow, tensor, state.target.partner).frontier)
        if any(flow.producer[x] == producer for x in frontier):
            suspicion.withdraw(facts.order(pair))


def withdraw_by_gradients(state: State, order: float, *, unmeasured: bool = False) -> None:
    """Withdraw suspicions of what is differentiated, once all gradients together agree: it added up to the same.

    `unmeasured`: all gradients are shards, and none can tell; only calls whose arguments differ stay suspected.
    """
    facts = state.facts
    differentiated = [
        frozenset(calls.forward[(calls.forward >= 0) & ~calls.recompute].tolist())
        for calls in (one.side.calls for one in facts.sides)
    ]
    of_target, of_reference = differentiated
    for suspicion in state.suspicions:
        finding = suspicion.finding
        row = int(facts.alignment.target[suspicion.at]) if suspicion.at >= 0 else -1
        stays = unmeasured and finding.has_telling_arguments
        if row < 0 or suspicion.firm or not suspicion.stands or stays:
            continue
        itself = finding.target in of_target or finding.reference in of_reference
        is_backward = "backward" in {facts.phase(suspicion.at), *_phases(facts, finding)}
        if itself or finding.batch_shapes or is_backward or leads_to(facts.flow_a, row, of_target):
            suspicion.withdraw(order)


def _phases(facts: Facts, finding: Finding) -> list[str]:
    sides = ((facts.a, finding.target), (facts.b, finding.reference))
    return [str(side.book.words[side.calls.phase[row]]) for side, row in sides if row >= 0]


def _detach_on_one_side(facts: Facts) -> LoneCall | None:
    """Return the first forward call of `detach` that one side alone has."""
    return _first_lone(facts, lambda one, row: one.side.book.words[one.side.calls.op[row]] == _CUTS_GRADIENT)


def _computing_on_one_side(facts: Facts) -> LoneCall | None:
    """Return the first forward call, of one side alone, that changes numbers and has a gradient."""
    return _first_lone(facts, lambda one, row: _is_active(facts, one, row))


def _is_active(facts: Facts, one: OneSide, row: int) -> bool:
    return facts.rounding_class(one.side, row) not in (*IDLE, Rounding.DISCRETE)


def _first_lone(facts: Facts, wanted: Callable[[OneSide, int], bool]) -> LoneCall | None:
    for one in facts.sides:
        calls, forward = one.side.calls, one.side.book.code("forward")
        for row in one.lone_calls.tolist():
            if calls.phase[row] == forward and calls.children[row] == 0 and wanted(one, row):
                return one.lone(row)
    return None


def _suspect_lone(state: State, pair: int, slot: str, lone: LoneCall, sizes: ErrorSizes) -> int:
    facts = state.facts
    finding = facts.lone_finding(lone, facts.target_name(pair), sizes, slot, order=facts.order(pair) - 0.5)
    return state.suspect(finding, firm=False, at=pair)
