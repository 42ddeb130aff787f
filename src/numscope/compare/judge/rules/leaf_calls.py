"""Judges a pair of calls that have no inner calls, by what it did to the error that came in."""

from __future__ import annotations

import numpy as np

from numscope.compare.align.slots import INPUT, OUTPUT
from numscope.compare.judge.findings import (
    EQUIVALENT,
    FAILED,
    INHERITED,
    ORIGIN,
    PLAIN,
    RIGHT,
    TAINTED,
    Finding,
    Status,
    or_zero,
)
from numscope.compare.judge.ledger import Ledger
from numscope.compare.judge.paths.counterparts import crossed, meets_again
from numscope.compare.judge.paths.provenance import Provenance
from numscope.compare.judge.reasons import ChangesState, OutputDiffers, UnrecordedWork
from numscope.compare.judge.rules.unrecorded_calls import lone_before
from numscope.compare.load.side import Floats, distinct
from numscope.core.operators import Rounding, Trait, names_with, operator


class Leaves:
    """Judges calls without inner calls; `limits` is what rounding explains at each pair."""

    def __init__(self, ledger: Ledger, provenance: Provenance, limits: Floats) -> None:
        self.ledger, self.provenance, self.limits = ledger, provenance, limits
        self.uses = np.zeros(len(ledger.a.tensors.hash), np.int64)
        slots = ledger.a.slots
        codes, place = distinct(ledger.a.calls.op)
        names = [ledger.a.book.words[code] if code >= 0 else "" for code in codes.tolist()]
        # `ones_like` asks for a shape: it does not read what it is given.
        reads = np.array(
            [operator(name).rounding != Rounding.CREATE and name not in names_with(Trait.OVERWRITES) for name in names],
            dtype=np.bool_,
        )
        given = (ledger.flow_a.role != OUTPUT) & (slots.tensor >= 0) & reads[place[slots.call]]
        np.add.at(self.uses, slots.tensor[given], 1)

    def judge(self, pair: int) -> None:
        ledger = self.ledger
        statuses = self._statuses(pair)
        failures = [cause for status, cause in statuses if status == FAILED]
        failed = failures[0] if failures else None
        tainted = next((cause for status, cause in statuses if status == TAINTED), None)
        if tainted is None and failed is None:
            tainted = self._hidden_taint(pair)
        out = float(ledger.errors.error_out[pair])
        came_in = max(or_zero(ledger.errors.error_in[pair]), or_zero(ledger.errors.error_state[pair]))
        carried = self._carried(pair)
        unseen = ledger.follows_unseen(pair)
        if unseen:
            came_in = max(came_in, ledger.noise_so_far())
            carried = came_in
        flipped = unseen and bool(ledger.errors.discrete_out[pair]) and came_in > 0
        if tainted is not None:
            self._inherit(pair, tainted, out)
        elif failed is not None and out == 0 and self._proves(pair):
            for cause in failures:
                ledger.suspicions[cause].healed_at = ledger.order(pair) + 0.5
        elif failed is not None:
            ledger.loosen(pair, failures)
            ledger.verdict[pair] = INHERITED
            ledger.cause_of[pair] = failed
            self._check_ends(pair)
        elif not ledger.solid[pair]:
            self._check_ends(pair)
        elif (
            np.isnan(out)
            or flipped
            or (
                out <= self._limit(pair, came_in, carried)
                and not self._is_scaled(pair, came_in)
                and self._in_list(pair) is None
            )
        ):
            for row in ledger.made(pair):
                error = ledger.error(row)
                ledger.mark_right(*ledger.tensors(row), max(came_in, carried) if np.isnan(error) else error)
            ledger.note_right(pair, out)
            self._remember_arguments(pair, out)
        elif self._does_another_part(pair):
            ledger.loosen(pair, [])
            if ledger.errors.operator[pair] == Rounding.MOVE:
                self._check_ends(pair)
        elif unseen and (lone := lone_before(ledger, pair, out, float(self.limits[pair]), came_in)) is not None:
            ledger.inherit(pair, ledger.suspect(lone, firm=True))
        else:
            if self._begins_otherwise(pair):  # numbers of another kind, perhaps for another use: see where they lead
                cause = ledger.find(OutputDiffers(), pair, out, float(self.limits[pair]), came_in, firm=False)
                ledger.loosen(pair, [cause])
                ledger.verdict[pair], ledger.cause_of[pair] = ORIGIN, cause
                return
            blamed, slot = (self._unseen(pair) if came_in == 0 else None) or (pair, "")
            explained = float(self.limits[pair])
            explained = explained if out > explained else self._limit(pair, came_in, carried)
            out, explained, came_in = self._in_list(pair) or (out, explained, came_in)
            cause = ledger.find(
                UnrecordedWork() if slot else OutputDiffers(), blamed, out, explained, came_in, slot=slot
            )
            ledger.inherit(pair, cause)
            ledger.cause_of[blamed] = cause
            ledger.verdict[blamed] = ORIGIN
        follows = self._cause_of_forward(pair) if np.isinf(out) and ledger.verdict[pair] == EQUIVALENT else None
        if follows is not None:
            ledger.verdict[pair] = (
                INHERITED  # a NaN on one side alone is not rounding, whatever its forward call was given
            )
            ledger.cause_of[pair] = follows

    def _proves(self, pair: int) -> bool:
        """Return whether the same result proves that what was given is the same, too: not where it is only a sign or a choice
        that comes of it."""
        ledger = self.ledger
        coarse = ledger.errors.operator[pair] == Rounding.DISCRETE or ledger.errors.name[pair] in names_with(
            Trait.SIGN_LIKE
        )
        return not coarse and any(ledger.is_telling(row) for row in ledger.made(pair))

    def _statuses(self, pair: int) -> list[Status]:
        """Return whether what a pair was given is right; calls whose forward calls do different jobs may get different
        gradients, and calls with other weights different inputs: they only inherit."""
        ledger = self.ledger
        forward = int(ledger.forward_pair[pair]) if ledger.phase(pair) == "backward" else -1
        other = any(ledger.other_sources[row] and ledger.slots.role[row] == INPUT for row in ledger.given(pair))
        if (forward < 0 or ledger.solid[forward]) and not other:
            return [self.provenance.check(pair, row) for row in ledger.given(pair)]
        given = [ledger.tensors(row)[0] for row in ledger.given(pair)]
        return [(TAINTED, int(ledger.cause_a[t])) if ledger.wrong_a[t] else (RIGHT, -1) for t in given]

    def _begins_otherwise(self, pair: int) -> bool:
        """Return whether a pair makes tensors from nothing but arguments, and not from the same, for calls that are read."""
        ledger = self.ledger
        made = [ledger.tensors(row)[0] for row in ledger.made(pair)]
        return ledger.errors.operator[pair] == Rounding.CREATE and not ledger.blind and any(self.uses[t] for t in made)

    def _does_another_part(self, pair: int) -> bool:
        """Return whether a call does what other calls of the other run do: it chooses halves in another order, or comes
        to the same result after a call more (the sum, divided by the count, for the mean)."""
        ledger = self.ledger
        off = [row for row in ledger.made(pair) if ledger.error(row) != 0]
        if ledger.errors.operator[pair] == Rounding.MOVE:
            return all(crossed(ledger, row) for row in off)
        return bool(ledger.told(pair)) and all(meets_again(ledger, row) for row in off)

    def _unseen(self, pair: int) -> tuple[int, str] | None:
        """Return the pair that first made what differs by an unknown amount, though it was given the same; or the one
        that was first given it, and its slot, where nothing recorded made it."""
        ledger = self.ledger
        for row in ledger.given(pair):
            if not np.isnan(ledger.error(row)):
                continue
            t = ledger.tensors(row)[0]
            if ledger.flow_a.producer[t] < 0:
                first = int(np.flatnonzero(ledger.flow_a.same[ledger.slots.a] == t)[0])
                return int(ledger.slots.pair[first]), ledger.slot(first)
            for maker in np.flatnonzero(ledger.alignment.target == ledger.flow_a.producer[t]).tolist():
                earlier = self._unseen(maker)
                if earlier is not None:
                    return earlier
                given = np.fmax(ledger.errors.error_in[maker], ledger.errors.error_state[maker])
                if ledger.solid[maker] and not np.nan_to_num(given, posinf=1.0) > 0:
                    return int(maker), ""
        return None

    def _hidden_taint(self, pair: int) -> int | None:
        """Return the cause if something wrong reaches a call other than through its paired inputs."""
        ledger = self.ledger
        target = int(ledger.alignment.target[pair])
        forward = int(ledger.a.calls.forward[target])
        held: list[int] = []
        if (
            forward >= 0 and ledger.phase(pair) == "backward"
        ):  # a backward call also reads what its forward call was given and made
            here = slice(ledger.a.slots.start[forward], ledger.a.slots.start[forward + 1])
            held += [int(ledger.flow_a.same[t]) for t in ledger.a.slots.tensor[here].tolist() if t >= 0]
        if not ledger.given(pair):
            held += ledger.flow_a.inputs(target)
        wrong = next((int(ledger.cause_a[t]) for t in held if t >= 0 and ledger.wrong_a[t]), None)
        if wrong is None and ledger.follows_unseen(pair) and ledger.anything_wrong():
            return ledger.first_cause()
        return wrong

    def _cause_of_forward(self, pair: int) -> int | None:
        """Return the cause from which the forward call of a backward call follows."""
        ledger = self.ledger
        forward = int(ledger.a.calls.forward[int(ledger.alignment.target[pair])])
        found = np.flatnonzero(ledger.alignment.target == forward).tolist() if forward >= 0 else []
        return ledger.cause_of.get(found[0]) if found else None

    def _inherit(self, pair: int, cause: int, out: float) -> None:
        ledger = self.ledger
        # No cancellation excuses what follows from something wrong: only what is as small as plain rounding is right again.
        if np.isnan(out) or out > min(float(ledger.errors.floor[pair]), PLAIN * float(ledger.errors.roundoff[pair])):
            ledger.inherit(pair, cause)

    def _check_ends(self, pair: int) -> None:
        """Judge what a pair that does not do the same job made, where nothing recorded uses it."""
        ledger = self.ledger
        for row in ledger.made(pair) if ledger.phase(pair) == "forward" else ():
            t, _ = ledger.tensors(row)
            if (
                self.uses[t] == 0
                and ledger.error(row) != 0
                and ledger.flow_a.producer[t] == ledger.alignment.target[pair]
            ):
                status, cause = self.provenance.regions.check(pair, row)
                if status != RIGHT:
                    ledger.verdict[pair] = INHERITED
                    ledger.cause_of[pair] = cause

    def _carried(self, pair: int) -> float:
        """Return the error of inputs that cannot be measured themselves, as it was on the way to them."""
        ledger = self.ledger
        unknown = [ledger.tensors(row)[0] for row in ledger.given(pair) if np.isnan(ledger.error(row))]
        return max((float(ledger.error_a[t]) for t in unknown), default=0.0)

    def _limit(self, pair: int, came_in: float, carried: float) -> float:
        """Return the error that is explained, lowered where there is other evidence that the two compute differently."""
        ledger = self.ledger
        limit = float(self.limits[pair] + ledger.errors.gain[pair] * carried)
        came_in = max(came_in, carried)
        if any(difference.telling for difference in ledger.told(pair)):
            # With arguments that differ, only the error that came in is an excuse, not the call's own rounding.
            return min(limit, 2.0 * came_in)
        return limit

    def _is_scaled(self, pair: int, came_in: float) -> bool:
        """Return whether, from the same inputs, the outputs differ by a factor that is none of rounding's."""
        ledger = self.ledger
        least = float(self.limits[pair]) / 16.0
        return came_in == 0.0 and any(ledger.scaled_error(row) > least for row in ledger.made(pair))

    def _in_list(self, pair: int) -> tuple[float, float, float] | None:
        """Return the error of an element of a list that was given right and came out wrong, what is explained of it, and
        what came in; the worst of a list may be one that is nothing but rounding, and would hide it."""
        ledger = self.ledger
        if ledger.errors.name[pair] not in names_with(Trait.LIST_BY_ELEMENT):
            return None
        rows = {ledger.slot(row): row for row in ledger.rows(pair)}
        others = [ledger.size(row) for slot, row in rows.items() if slot.count(".") == 1 and slot.startswith("input")]
        for slot, row in rows.items():
            given = rows.get(f"input.0.{slot.partition('.')[2]}") if slot.startswith("output.") else None
            if given is not None:
                came_in = max([ledger.size(given), *others])
                explained = 32.0 * came_in + PLAIN * ledger.roundoff(*ledger.tensors(row))
                if ledger.size(row) > explained:
                    return ledger.size(row), explained, came_in
        return None

    def _remember_arguments(self, pair: int, error: float) -> None:
        """Keep a call whose arguments differ without effect on its outputs: it may change state that shows later."""
        ledger = self.ledger
        told = tuple(ledger.differences.get(pair, ()))
        if not any(difference.telling for difference in told):
            return
        row = int(ledger.alignment.target[pair])
        reference = int(ledger.alignment.reference[pair])
        finding = Finding(
            ChangesState(),
            pair,
            row,
            reference,
            ledger.a.step,
            ledger.a.rank,
            float(row),
            error,
            0.0,
            0.0,
            told,
        )
        module = ledger.a.calls.module[row]
        path = ledger.a.book.words[module] if module >= 0 else ""
        for name in ("running_mean", "running_var"):
            ledger.history.arguments.setdefault(f"buffers.{path}.{name}" if path else f"buffers.{name}", finding)
