"""Judges the gradients of runs that are given parts of other sizes of one batch (batch_parts.py), once all are added up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from numscope.compare.judge.facts import Facts
from numscope.compare.judge.findings import ErrorSizes, Finding
from numscope.compare.judge.reasons import GradientsOfParts
from numscope.compare.judge.state import State
from numscope.compare.layouts.rank_facts import parts_on_ranks

_OFF = 1e-3  # relative: a gradient that is off by more is counted
_SHARE = 1e-5  # of all gradients together: one that is off by less is not counted
_JOINT_ROUNDING = 32  # unit roundoffs, of the norm of all gradients together


def blame_gradients(state: State, pair: int, rows: list[int]) -> None:
    """Name the gradients, which differ though the parts have been added up, in place of calls that a part made differ.

    A call whose arguments differ stays the one that is named.
    """
    standing = [suspicion for suspicion in state.suspicions if suspicion.stands]
    of_parts = [one for one in standing if one.finding.batch_shapes and not one.firm]
    if len(of_parts) < len(standing):
        return
    finding = _finding(state.facts, pair, rows)
    for suspicion in of_parts:
        suspicion.confirm(finding)
    if not of_parts:
        state.suspect(finding, firm=True)


def nothing_but_rounding(facts: Facts, rows: list[int]) -> set[int]:
    """Return the gradients that are no larger than rounding of all gradients together."""
    norms = facts.reference_norms(rows)
    roundoff = np.array([facts.roundoff(*facts.tensors(row)) for row in rows])
    least = _JOINT_ROUNDING * roundoff * float(np.linalg.norm(norms))
    return {row for row, is_nothing in zip(rows, (norms <= least).tolist()) if is_nothing}


def lost_in_rounding(facts: Facts, rows: list[int]) -> set[int]:
    """Return the gradients whose error is no more than rounding of all gradients together.

    A sum over a batch that is zero but for rounding, such as a key bias's gradient, differs with every order of its terms.
    """
    norms = facts.reference_norms(rows)
    off = norms * facts.errors_or_zero(rows)
    roundoff = np.array([facts.roundoff(*facts.tensors(row)) for row in rows])
    least = _JOINT_ROUNDING * roundoff * float(np.linalg.norm(norms))
    return {row for row, is_lost in zip(rows, (off <= least).tolist()) if is_lost}


def _finding(facts: Facts, pair: int, rows: list[int]) -> Finding:
    norms, errors = facts.reference_norms(rows), facts.errors_or_zero(rows)
    total = max(float(np.linalg.norm(norms)), 1e-300)
    off = (errors > _OFF) & (norms * errors > _SHARE * total)
    worst = int(np.argmax(norms * errors))
    factors = np.array([_factor(facts, row) for row in rows])
    factor = factors[worst]
    is_common = np.isfinite(factor) and bool(np.all(np.abs(factors[off] - factor) <= _OFF * abs(factor)))
    row = rows[worst]
    t, r = facts.tensors(row)
    rank, parts = parts_on_ranks(facts.a, t, facts.b, r)
    reason = GradientsOfParts(int(off.sum()), len(rows), float(factor) if is_common else None, rank, parts)
    sizes = ErrorSizes(float(errors[worst]), _JOINT_ROUNDING * facts.roundoff(*facts.tensors(row)))
    found = facts.finding(reason, pair, sizes, facts.slot(row))
    return replace(found, differences=(), batch_shapes=facts.batch_shapes)


def _factor(facts: Facts, row: int) -> float:
    """Return the factor by which a gradient is the reference's, NaN where it is no multiple of it."""
    t, r = facts.slots.a[row], facts.slots.b[row]
    target, reference = facts.a.tensors.sketch[t], facts.b.tensors.sketch[r]
    square = float(reference @ reference)
    if not (facts.a.tensors.sketched[t] and facts.b.tensors.sketched[r] and square > 0):
        return float("nan")
    factor = float(target @ reference) / square
    rest = float(np.linalg.norm(target - factor * reference))
    return factor if rest <= _OFF * float(np.linalg.norm(target)) else float("nan")
