"""Runs that are given parts of other sizes of one batch: micro batches here, a share for each rank there.

The calls of such a step have no counterpart of the same size: what a part makes is not what the whole makes. What can be
compared are the gradients that reach the optimizer, when all parts have been added up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.slots import SlotPairs
from numscope.compare.judge.findings import Finding, or_zero
from numscope.compare.judge.paths.dataflow import Flow
from numscope.compare.judge.reasons import GradientsOfParts
from numscope.compare.load.side import Side

if TYPE_CHECKING:
    from numscope.compare.judge.ledger import Ledger

_OFF = 1e-3  # relative: a gradient that is off by more is counted
_SHARE = 1e-5  # of all gradients together: one that is off by less matters to nobody


def batch_shapes(a: Side, b: Side, alignment: Alignment, slots: SlotPairs) -> str:
    """Return the shapes of the data of both sides, "[4, 12] against [8, 12]", where these are parts of other sizes of one
    batch: all but their first dimension is the same, or one is a multiple of the other in the second."""
    data = a.calls.kind[alignment.target[slots.pair]] == a.book.code("data")
    for row in np.flatnonzero(data & (a.tensors.elements[slots.a] != b.tensors.elements[slots.b])).tolist():
        texts = [side.book.words[side.tensors.shape[tensor]] for side, tensor in ((a, slots.a[row]), (b, slots.b[row]))]
        mine, theirs = ([int(part) for part in text.split(", ")] if text else [] for text in texts)
        unlike = [axis for axis, (one, other) in enumerate(zip(mine, theirs)) if one != other]
        if len(mine) != len(theirs) or len(unlike) != 1:
            continue
        small, large = sorted((mine[unlike[0]], theirs[unlike[0]]))
        if unlike == [0] or (unlike == [1] and small and large % small == 0):
            return f"[{texts[0]}] against [{texts[1]}]"
    return ""


def loading(flow: Flow, alignment: Alignment, told: Iterable[int]) -> list[int]:
    """Return those of the pairs whose arguments differ that choose and prepare data: nothing of a model's led to them.

    With other parts of a batch they choose other samples.
    """
    calls, book = flow.side.calls, flow.side.book
    outside = (calls.parent < 0) & (calls.kind == book.code("api")) & (calls.phase == book.code("forward"))
    loads: set[int] = set()
    for call in np.flatnonzero(outside).tolist():
        makers = {int(flow.producer[tensor]) for tensor in flow.inputs(call)}
        if makers <= loads | {-1}:
            loads.add(call)
    return [pair for pair in told if int(alignment.target[pair]) in loads]


def blame_gradients(ledger: Ledger, pair: int, rows: list[int]) -> None:
    """Name the gradients, which are not the same though the parts have been added up, in place of what was suspected
    because a part is not the whole. A call whose arguments differ stays what it is."""
    stands = [suspicion for suspicion in ledger.suspicions if suspicion.stands]
    open_ = [one for one in stands if one.finding.batch_shapes and not one.firm]
    if len(open_) < len(stands):
        return
    finding = _of_gradients(ledger, pair, rows)
    for suspicion in open_:
        suspicion.finding, suspicion.firm = finding, True
    if not open_:
        ledger.suspect(finding, firm=True)


def lost_in_rounding(ledger: Ledger, rows: list[int]) -> set[int]:
    """Return the gradients whose error is no more than rounding of all gradients together: sums over a batch that come to
    nothing, like that of a key's bias, are another number in every order of their terms."""
    norms = np.array([or_zero(ledger.b.tensors.l2[ledger.slots.b[row]]) for row in rows])
    off = norms * np.array([ledger.size(row) for row in rows])
    least = np.array([32 * ledger.roundoff(*ledger.tensors(row)) for row in rows]) * float(np.linalg.norm(norms))
    return {row for row, is_lost in zip(rows, (off <= least).tolist()) if is_lost}


def _of_gradients(ledger: Ledger, pair: int, rows: list[int]) -> Finding:
    norms = np.array([or_zero(ledger.b.tensors.l2[ledger.slots.b[row]]) for row in rows])
    errors = np.array([ledger.size(row) for row in rows])
    total = max(float(np.linalg.norm(norms)), 1e-300)
    off = (errors > _OFF) & (norms * errors > _SHARE * total)
    worst = int(np.argmax(norms * errors))
    factors = np.array([_factor(ledger, row) for row in rows])
    factor = factors[worst]
    alike = np.isfinite(factor) and bool(np.all(np.abs(factors[off] - factor) <= _OFF * abs(factor)))
    count = int(off.sum())
    reason = GradientsOfParts(count, len(rows), float(factor) if alike else None)
    row, reference = int(ledger.alignment.target[pair]), int(ledger.alignment.reference[pair])
    place = (ledger.a.step, ledger.a.rank, float(row))
    sizes = (float(errors[worst]), 32 * ledger.roundoff(*ledger.tensors(rows[worst])), 0.0)
    slot = ledger.slot(rows[worst])
    return Finding(reason, pair, row, reference, *place, *sizes, slot=slot, batch_shapes=ledger.parts)


def _factor(ledger: Ledger, row: int) -> float:
    """Return the factor by which a gradient is the reference's, NaN where it is no multiple of it."""
    t, r = ledger.slots.a[row], ledger.slots.b[row]
    mine, theirs = ledger.a.tensors.sketch[t], ledger.b.tensors.sketch[r]
    square = float(theirs @ theirs)
    if not (ledger.a.tensors.sketched[t] and ledger.b.tensors.sketched[r] and square > 0):
        return float("nan")
    factor = float(mine @ theirs) / square
    rest = float(np.linalg.norm(mine - factor * theirs))
    return factor if rest <= _OFF * float(np.linalg.norm(mine)) else float("nan")
