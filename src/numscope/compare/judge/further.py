"""Looks for faults behind the first: calls that differ by themselves, though what they are given is wrong already.

The first fault taints all that follows, and what is tainted is not judged by its error. Four things are told from what
follows nevertheless: arguments that ask for something else, optimizers' settings among them; another operator in the place
of the reference's; calls that one side alone has, where the error behind them is many times the one before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from numscope.compare.align.pairing import SEQUENCE
from numscope.compare.align.slots import OUTPUT
from numscope.compare.judge.facts import Facts
from numscope.compare.judge.findings import INHERITED, ErrorSizes, Finding, Weight, or_zero
from numscope.compare.judge.paths.dataflow import RegionPair, region
from numscope.compare.judge.paths.region_cause import region_cause
from numscope.compare.judge.reasons import AsksForAnother, DoesAnotherJob, OneSidedCall
from numscope.compare.judge.state import State
from numscope.core.operators import IDLE, canonical

_GROWS = 8.0  # times the error at the entrance: ordinary calls enlarge an error less, as the noise table shows
_MOST_REGIONS = 200  # that are looked at in a step


def further_findings(state: State, findings: list[Finding]) -> list[Finding]:
    """Return what differs by itself in a step that has an origin, and is not among its findings."""
    if not findings and not state.history.diverged:
        return []
    named = {(one.target, one.reference) for one in findings if one.ready is None}
    found = list(_by_arguments(state))
    if not state.history.diverged:  # in later steps all of the first one's calls differ again
        found += [*_by_operator(state), *_by_growth(state)]
    return [replace(one, weight=Weight.AFTER_ANOTHER) for one in found if (one.target, one.reference) not in named]


def _by_arguments(state: State) -> Iterator[Finding]:
    """Yield the outermost calls whose arguments ask for something else."""
    facts = state.facts
    parents = facts.a.calls.parent
    told = state.history.asked
    for pair in sorted(facts.differences):
        outer = facts.pair_of(int(parents[facts.alignment.target[pair]]))
        asked = facts.has_telling_arguments(pair) or _asks_with_another_number(facts, pair)
        if state.verdict[pair] != INHERITED or not asked or outer in facts.differences:
            continue
        name = facts.target_name(pair)
        if name in told or (state.history.diverged and facts.kind(pair) != "optimizer"):
            continue
        told.add(name)
        errors = facts.errors
        sizes = ErrorSizes(or_zero(errors.error_out[pair]), float(facts.limits[pair]), or_zero(errors.error_in[pair]))
        yield facts.finding(AsksForAnother(), pair, sizes)


def _asks_with_another_number(facts: Facts, pair: int) -> bool:
    """Return whether a call that computes is given another whole number, though all shapes are the same.

    Where shapes differ, or in a call that only moves elements, numbers are sizes; -1 and 3 may be one axis of four.
    """
    if any(facts.rounding_class(side, call) in IDLE for side, call in zip((facts.a, facts.b), facts.calls(pair))):
        return False
    shapes = [(facts.a.tensors.shape[t], facts.b.tensors.shape[r]) for t, r in map(facts.tensors, facts.rows(pair))]
    if any(target != reference for target, reference in shapes):
        return False
    axes = {len(facts.a.book.words[shape].split(", ")) for shape, _ in shapes}
    numbers = [(one.target, one.reference) for one in facts.differences[pair]]
    return facts.kind(pair) != "optimizer" and any(
        isinstance(x, int) and isinstance(y, int) and not any(_are_one_axis(x, y, count) for count in axes)
        for x, y in numbers
    )


def _are_one_axis(x: int, y: int, count: int) -> bool:
    return -count <= x < count and -count <= y < count and (x - y) % count == 0


def _by_operator(state: State) -> Iterator[Finding]:
    """Yield the calls that compute by another operator than the reference's in the same place.

    Two ways to do the same do not enlarge an error; where what comes in is too far off to tell, it counts that the same
    two operators did not agree elsewhere.
    """
    facts, errors = state.facts, state.facts.errors
    harmless, found = set[tuple[str, str]](), list[tuple[tuple[str, str], int]]()
    forward = facts.a.calls.phase[facts.alignment.target] == facts.a.book.code("forward")
    unlike = facts.a.calls.op[facts.alignment.target] != facts.b.calls.op[facts.alignment.reference]
    for pair in np.flatnonzero(unlike & forward & ~facts.has_inner_calls).tolist():
        names = _operators(facts, pair)
        if names is None or np.isnan(errors.error_out[pair]):
            continue
        came, out = or_zero(errors.error_in[pair]), float(errors.error_out[pair])
        if not out > _GROWS * max(came, float(errors.floor[pair])) and came < 1 / _GROWS:
            harmless.add(names)
        elif state.verdict[pair] == INHERITED and facts.alignment.why[pair] == SEQUENCE:
            found.append((names, pair))
    for names, pair in found:
        if names not in harmless:
            sizes = ErrorSizes(
                or_zero(errors.error_out[pair]), float(facts.limits[pair]), or_zero(errors.error_in[pair])
            )
            yield facts.finding(DoesAnotherJob(), pair, sizes)


def _operators(facts: Facts, pair: int) -> tuple[str, str] | None:
    """Return the operators of two calls that compute, None where they are one by two names, or compute nothing."""
    calls = zip((facts.a, facts.b), facts.calls(pair))
    names, idle = list[str](), list[bool]()
    for side, call in calls:
        idle.append(facts.rounding_class(side, call) in IDLE)
        names.append(canonical(side.book.words[side.calls.op[call]]))
    target, reference = names
    return (target, reference) if target != reference and not all(idle) else None


def _by_growth(state: State) -> Iterator[Finding]:
    """Yield the calls, of one side alone, behind which an error is many times what it is before them."""
    facts, told = state.facts, set[int]()
    for pair, row in _behind_lone_calls(state)[:_MOST_REGIONS]:
        t, r = facts.tensors(row)
        regions = RegionPair(
            region(facts.flow_a, t, state.target.partner), region(facts.flow_b, r, state.reference.partner)
        )
        calls = {*regions.target.calls, *(-1 - call for call in regions.reference.calls)}
        front = _front(state, regions)
        if (
            facts.phase(pair) == "backward"
        ):  # where it begins, nothing comes in; but it reads what its forward calls read
            front = np.maximum(max(front, float(facts.errors.floor[pair])), _held(state, regions))
        error = facts.error(row)
        if not calls or calls & told or not 0 < front < np.inf or not _GROWS * front < error < np.inf:
            continue
        told |= calls
        finding = region_cause(state, pair, row, regions, ErrorSizes(error, _GROWS * front, front))
        if isinstance(finding.reason, OneSidedCall):
            yield finding


def _behind_lone_calls(state: State) -> list[tuple[int, int]]:
    """Return the pairs and slots of calls that inherit an error, given what calls of one side alone made; forward first."""
    facts = state.facts
    slots = facts.slots
    made_a, made_b = (
        facts.flow_a.producer[facts.flow_a.same[slots.a]],
        facts.flow_b.producer[facts.flow_b.same[slots.b]],
    )
    lone = ((made_a >= 0) & (state.target.partner[made_a] < 0)) | (
        (made_b >= 0) & (state.reference.partner[made_b] < 0)
    )
    phases, word = facts.a.calls.phase[facts.alignment.target[slots.pair]], facts.a.book.code
    chosen = (slots.role != OUTPUT) & lone & (state.verdict == INHERITED)[slots.pair]
    chosen &= ~facts.has_inner_calls[slots.pair]
    rows = [np.flatnonzero(chosen & (phases == word(phase))) for phase in ("forward", "backward")]
    return [(int(slots.pair[row]), row) for row in np.concatenate(rows).tolist()]


def _held(state: State, regions: RegionPair) -> float:
    """Return the largest error of what the forward calls of a backward region are given; NaN where one is not known."""
    errors = [0.0]
    for (one, status), part in zip(state.sides, regions):
        slots = state.facts.slots
        paired = set(one.flow.same[slots.a if one.who == "target" else slots.b].tolist())
        for call in part.calls:
            forward = int(one.side.calls.forward[call])
            for tensor in one.flow.inputs(forward) if forward >= 0 else ():
                errors.append(float(status.error[tensor]) if tensor in paired else np.nan)
    return float(np.max(errors))


def _front(state: State, regions: RegionPair) -> float:
    """Return the largest error at the entrance of a region; NaN where one is not known."""
    errors = [_error_of(state.facts, x, int(state.counterpart[x])) for x in regions.target.frontier]
    return max([0.0, *errors]) if not any(np.isnan(errors)) else np.nan


def _error_of(facts: Facts, t: int, r: int) -> float:
    rows = np.flatnonzero((facts.slots.a == t) & (facts.slots.b == r))
    return facts.error(int(rows[0])) if len(rows) else np.nan
