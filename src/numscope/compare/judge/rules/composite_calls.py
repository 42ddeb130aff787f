"""Judges a pair of calls that have inner calls: those explain it, or what stands between them does."""

from __future__ import annotations

import numpy as np

from numscope.compare.judge.findings import INHERITED, ORIGIN, PLAIN, RIGHT, or_zero
from numscope.compare.judge.ledger import Ledger
from numscope.compare.judge.paths.provenance import Provenance
from numscope.compare.judge.reasons import InnerCallsAgree


class Outer:
    """Judges calls with inner calls, after those."""

    def __init__(self, ledger: Ledger, provenance: Provenance) -> None:
        self.ledger, self.provenance = ledger, provenance
        parent = ledger.a.calls.parent[ledger.alignment.target]
        self.inner: dict[int, list[int]] = {}
        for pair in np.flatnonzero(parent >= 0).tolist():
            self.inner.setdefault(int(parent[pair]), []).append(pair)

    def judge(self, pair: int) -> None:
        """Judge a call with inner calls: they explain it, or what stands between them does."""
        ledger = self.ledger
        inside = self.inner.get(int(ledger.alignment.target[pair]), [])
        cause = next((ledger.cause_of[p] for p in inside if p in ledger.cause_of), None)
        for row in ledger.given(pair):
            status, why = self.provenance.check(pair, row)
            if status != RIGHT and cause is None:
                cause = why
        for row in ledger.made(pair):
            found = self._check_made(pair, row, inside, cause)
            cause = found if cause is None else cause
        if cause is not None and not ledger.errors.identical[pair]:
            own = cause >= 0 and ledger.suspicions[cause].finding.pair == pair
            ledger.verdict[pair] = ORIGIN if own else INHERITED
            ledger.cause_of[pair] = cause

    def _check_made(self, pair: int, row: int, inside: list[int], cause: int | None) -> int | None:
        ledger = self.ledger
        t, r = ledger.tensors(row)
        error = ledger.error(row)
        label = self.provenance.label(pair, row).replace("parameters_grad.", "parameters.", 1)
        if error == 0 or np.isnan(error) or label in ledger.history.layouts:
            return None
        if ledger.wrong_a[t]:
            return int(ledger.cause_a[t])
        maker_a, maker_b = int(ledger.flow_a.producer[t]), int(ledger.flow_b.producer[r])
        own = (int(ledger.alignment.target[pair]), int(ledger.alignment.reference[pair]))
        if maker_a not in (-1, own[0]) or maker_b not in (-1, own[1]):
            if ledger.known[t] == r:
                return None
            status, why = self.provenance.check(pair, row)
            return None if status == RIGHT else why
        if not ledger.solid[pair]:
            return None  # it is given something else: where that leads tells
        # The call's own work, beyond its inner calls: the sum of gradients, or something that was not recorded.
        summed = self._wrong_part(t, inside)
        if summed is not None and error > PLAIN * ledger.roundoff(t, r):
            ledger.mark_wrong(t, r, error, summed)
            return summed
        front = max([0.0, *(or_zero(ledger.errors.error_out[p]) for p in inside)])
        front = max(front, or_zero(ledger.errors.error_in[pair]))
        if ledger.phase(pair) == "backward":
            front = max(front, ledger.worst_right["backward"], ledger.history.noise)
        explained = 32 * ledger.roundoff(t, r) + 32 * front
        if ledger.phase(pair) == "backward":
            explained = max(explained, or_zero(ledger.errors.floor[pair]))
        if error <= explained:
            return None
        if cause is None and not ledger.anything_wrong():
            summed_up = ledger.slot(row).startswith("parameters_grad")  # what reaches the optimizer tells
            cause = ledger.find(
                InnerCallsAgree(),
                pair,
                error,
                explained,
                front,
                slot=ledger.slot(row),
                firm=not summed_up,
            )
        elif cause is None:
            cause = ledger.first_cause()
        ledger.mark_wrong(t, r, error, cause)
        return cause

    def _wrong_part(self, t: int, inside: list[int]) -> int | None:
        """Return the cause if something wrong of the same size, made by an inner call, may be a part of a sum."""
        ledger = self.ledger
        elements = ledger.a.tensors.elements
        parts = (ledger.tensors(row)[0] for pair in inside for row in ledger.made(pair))
        return next((int(ledger.cause_a[x]) for x in parts if ledger.wrong_a[x] and elements[x] == elements[t]), None)
