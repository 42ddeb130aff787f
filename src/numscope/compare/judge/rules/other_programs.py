"""Evidence that needs no error: a call that is asked for something else, or that computes in another dtype.

In bfloat16, or behind other kernels, the error that came in may hide what such a call does. But it is another program:
rounding has not written its arguments, nor the cast before it. What differs so is an origin where nothing else is wrong,
unless it does nothing (its result is what it is given, on both sides).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numscope.compare.align.slots import OUTPUT
from numscope.compare.judge.findings import EQUIVALENT, ErrorSizes, Finding, or_zero
from numscope.compare.judge.reasons import AsksForAnother, ComputesInAnotherDtype
from numscope.compare.judge.state import State
from numscope.compare.load.side import Flags, Floats, Side
from numscope.core.dtypes import SINGLE, is_discrete, unit_roundoff
from numscope.core.operators import IDLE, MULTIPLIES, Rounding

_COARSER = 4.0  # times the unit roundoff: float32 against TF32 is no dtype
_LEAST_SIBLINGS = 3  # that show what is usual on a line of the reference
_WITHOUT = (*IDLE, Rounding.RANDOM, Rounding.DISCRETE, Rounding.OTHER)


def other_programs(state: State, findings: list[Finding]) -> list[Finding]:
    """Return the first call that is of another program, in a step in which nothing is wrong by its size."""
    if findings or state.history.diverged or state.facts.inputs_unrecorded:
        return []
    found = [*_by_arguments(state), *_by_dtype(state)]
    return sorted(found, key=lambda finding: finding.order)[:1]


def _sizes(state: State, pair: int) -> ErrorSizes:
    errors = state.facts.errors
    return ErrorSizes(or_zero(errors.error_out[pair]), float(state.facts.limits[pair]), or_zero(errors.error_in[pair]))


def _computes(state: State) -> Flags:
    """Return the forward calls without inner calls that compute."""
    facts = state.facts
    forward = facts.a.calls.phase[facts.alignment.target] == facts.a.book.code("forward")
    return np.asarray(forward & ~np.isin(facts.errors.operator, _WITHOUT) & ~facts.has_inner_calls)


def _judged(state: State) -> Flags:
    """Return those of them that differ, and that rounding explains."""
    differ = np.nan_to_num(state.facts.errors.error_out) > 0
    return np.asarray(_computes(state) & (state.verdict == EQUIVALENT) & differ)


def _by_arguments(state: State) -> Iterator[Finding]:
    facts = state.facts
    judged = _judged(state)
    for pair in sorted(facts.differences):
        if judged[pair] and state.corresponds[pair] and facts.has_telling_arguments(pair):
            yield facts.finding(AsksForAnother(), pair, _sizes(state, pair))


def _by_dtype(state: State) -> Iterator[Finding]:
    """Yield the calls that the two sides compute in two dtypes, though the runs are of one precision.

    Between two precisions it is one whose siblings on the reference's line are computed alike on both sides. Under
    autocast each device has a list of its own: that is no program.
    """
    facts = state.facts
    (target, target_out), (reference, reference_out) = _dtypes(facts.a, state, True), _dtypes(facts.b, state, False)
    known = (target > 0) & (reference > 0)
    products = np.isin(facts.errors.operator, MULTIPLIES)
    casts = (target_out > _COARSER * target) | (reference_out > _COARSER * reference)
    if (products & known & casts).any():  # what it is given is wide, and what it makes is not: autocast
        return
    differs = known & (_apart(target, reference) | _apart(target_out, reference_out))
    judged, computes = _judged(state), _computes(state)
    lines = facts.b.calls.stack[facts.alignment.reference]
    for pair in np.flatnonzero(differs & judged & ~facts.only_gives_alike).tolist():
        if facts.two_precisions:
            like = (lines == lines[pair]) & known & computes & (facts.errors.operator == facts.errors.operator[pair])
            like[pair] = False
            if lines[pair] < 0 or like.sum() < _LEAST_SIBLINGS or (like & differs).any():
                continue
        reason = ComputesInAnotherDtype(_coarsest(state, pair, True), _coarsest(state, pair, False))
        yield facts.finding_with_evidence(reason, pair, _sizes(state, pair))


def _apart(target: Floats, reference: Floats) -> Flags:
    """Return where two sides' dtypes differ, one of them being narrower than float32."""
    low, high = np.minimum(target, reference), np.maximum(target, reference)
    return np.asarray((low > 0) & (high > _COARSER * np.maximum(low, SINGLE)))


def _coarsest(state: State, pair: int, is_target: bool) -> str:
    """Return the coarsest dtype that a pair's call is given, or makes, on a side."""
    facts = state.facts
    side, place = (facts.a, 0) if is_target else (facts.b, 1)
    names = [facts.dtype(side, facts.tensors(row)[place]) for row in facts.rows(pair)]
    return max((name for name in names if not is_discrete(name)), key=unit_roundoff)


def _dtypes(side: Side, state: State, is_target: bool) -> tuple[Floats, Floats]:
    """Return the coarsest roundoff of what each pair's call is given, and of what it makes; 0 for none."""
    slots = state.facts.slots
    words = side.book.words
    unit = np.array([0.0 if is_discrete(word) else unit_roundoff(word) for word in words] + [0.0])
    each = unit[side.tensors.dtype[slots.a if is_target else slots.b]]
    count = len(state.facts.alignment.target)
    given, made = np.zeros(count), np.zeros(count)
    is_made = slots.role == OUTPUT
    np.fmax.at(given, slots.pair[~is_made], each[~is_made])
    np.fmax.at(made, slots.pair[is_made], each[is_made])
    return given, made
