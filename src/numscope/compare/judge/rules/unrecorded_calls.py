"""Names a call that one side alone has, where no inputs were recorded that would lead to it.

The inputs of a call are then taken to be the results of those before it: where all of them agree, and a call that the
other side does not have stands between them and the first output that is off, that call is named.
"""

from __future__ import annotations

import numpy as np

from numscope.compare.judge.facts import Facts, OneSide
from numscope.compare.judge.findings import ErrorSizes, Finding, Inputs, LoneCall
from numscope.compare.load.unrecorded_inputs import is_source
from numscope.core.operators import IDLE


def lone_call_before(facts: Facts, pair: int, sizes: ErrorSizes) -> Finding | None:
    """Return a finding about the first computing call, of one side alone, between the pair before this one and this one."""
    if facts.has_telling_arguments(pair):
        return None
    alignment = facts.alignment
    target, reference = facts.calls(pair)
    same_phase = facts.a.calls.phase[alignment.target] == facts.a.calls.phase[target]
    earlier = np.flatnonzero((alignment.target < target) & ~facts.has_inner_calls & same_phase)
    begin_a, begin_b = facts.calls(int(earlier[np.argmax(alignment.target[earlier])])) if len(earlier) else (-1, -1)
    one_a, one_b = facts.sides
    extra = _first_computing(facts, one_a, begin_a, target)
    missing = _first_computing(facts, one_b, begin_b, reference)
    if extra < 0 and missing < 0:
        return None
    lone = LoneCall(extra, missing)
    return facts.lone_finding(lone, facts.target_name(pair), sizes, inputs=Inputs.UNRECORDED)


def _first_computing(facts: Facts, one: OneSide, begin: int, end: int) -> int:
    """Return the first call of one side alone between two calls that computes something, -1 for none."""
    calls = one.side.calls
    for row in one.lone_calls[(one.lone_calls > begin) & (one.lone_calls < end)].tolist():
        idle = facts.rounding_class(one.side, row) in IDLE or is_source(one.side, row)
        if not idle and calls.children[row] == 0 and calls.phase[row] == calls.phase[end]:
            return int(row)
    return -1
