"""Looks for faults behind the first: calls that differ by themselves, though what they are given is wrong already.

The first fault taints all that follows, and what is tainted is not judged by its error. Three things are told from what
follows nevertheless: arguments that ask for something else, optimizers' settings among them, and calls that one side
alone has, where the error behind them is many times the one before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from numscope.compare.align.slots import OUTPUT
from numscope.compare.judge.facts import Facts
from numscope.compare.judge.findings import INHERITED, ErrorSizes, Finding, Weight, or_zero
from numscope.compare.judge.paths.dataflow import RegionPair, region
from numscope.compare.judge.paths.region_cause import region_cause
from numscope.compare.judge.reasons import AsksForAnother, OneSidedCall
from numscope.compare.judge.state import State

_GROWS = 8.0  # times the error at the entrance: ordinary calls enlarge an error less, as the noise table shows
_MOST_REGIONS = 200  # that are looked at in a step


def further_findings(state: State, findings: list[Finding]) -> list[Finding]:
    """Return what differs by itself in a step that has an origin, and is not among its findings."""
    if not findings or state.history.diverged:
        return []
    named = {(one.target, one.reference) for one in findings if one.ready is None}
    found = [*_by_arguments(state), *_by_growth(state)]
    return [replace(one, weight=Weight.AFTER_ANOTHER) for one in found if (one.target, one.reference) not in named]


def _by_arguments(state: State) -> Iterator[Finding]:
    """Yield the outermost calls whose arguments ask for something else."""
    facts = state.facts
    parents = facts.a.calls.parent
    for pair in sorted(facts.differences):
        outer = facts.pair_of(int(parents[facts.alignment.target[pair]]))
        if state.verdict[pair] != INHERITED or not facts.has_telling_arguments(pair) or outer in facts.differences:
            continue
        errors = facts.errors
        sizes = ErrorSizes(or_zero(errors.error_out[pair]), float(facts.limits[pair]), or_zero(errors.error_in[pair]))
        yield facts.finding(AsksForAnother(), pair, sizes)


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
        error = facts.error(row)
        if not calls or calls & told or not 0 < front < np.inf or not _GROWS * front < error < np.inf:
            continue
        told |= calls
        finding = region_cause(state, pair, row, regions, ErrorSizes(error, _GROWS * front, front))
        if isinstance(finding.reason, OneSidedCall):
            yield finding


def _behind_lone_calls(state: State) -> list[tuple[int, int]]:
    """Return the pairs and slots of forward calls that inherit an error, given what calls of one side alone made."""
    facts = state.facts
    slots = facts.slots
    made_a, made_b = (
        facts.flow_a.producer[facts.flow_a.same[slots.a]],
        facts.flow_b.producer[facts.flow_b.same[slots.b]],
    )
    lone = ((made_a >= 0) & (state.target.partner[made_a] < 0)) | (
        (made_b >= 0) & (state.reference.partner[made_b] < 0)
    )
    forward = facts.a.calls.phase[facts.alignment.target] == facts.a.book.code("forward")
    chosen = (slots.role != OUTPUT) & lone & (state.verdict == INHERITED)[slots.pair] & forward[slots.pair]
    chosen &= ~facts.has_inner_calls[slots.pair]
    return [(int(slots.pair[row]), row) for row in np.flatnonzero(chosen).tolist()]


def _front(state: State, regions: RegionPair) -> float:
    """Return the largest error at the entrance of a region; NaN where one is not known."""
    errors = [_error_of(state.facts, x, int(state.counterpart[x])) for x in regions.target.frontier]
    return max([0.0, *errors]) if not any(np.isnan(errors)) else np.nan


def _error_of(facts: Facts, t: int, r: int) -> float:
    rows = np.flatnonzero((facts.slots.a == t) & (facts.slots.b == r))
    return facts.error(int(rows[0])) if len(rows) else np.nan
