"""What is known so far while the calls of a step are judged: which tensors are wrong, since when, and by whose fault."""

from __future__ import annotations

import math

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.arguments import Difference, differences, numbers
from numscope.compare.align.pairing import MAP
from numscope.compare.align.slots import INPUT, OUTPUT, SlotPairs
from numscope.compare.judge.call_errors import CallErrors, call_errors, forward_pairs
from numscope.compare.judge.findings import (
    EQUIVALENT,
    IDENTICAL,
    INHERITED,
    Dtypes,
    Finding,
    History,
    Inputs,
    Reason,
    Suspicion,
)
from numscope.compare.judge.other_ranks import Elsewhere
from numscope.compare.judge.paths.dataflow import flow, leads_to, other_sources
from numscope.compare.judge.reasons import DataOfAnotherSize
from numscope.compare.judge.rounding import common_roundoff
from numscope.compare.judge.rules.micro_batches import batch_shapes, loading
from numscope.compare.load.side import Flags, Floats, Ints, Side, distinct
from numscope.compare.load.unrecorded_inputs import is_source, loosened, records_inputs
from numscope.compare.measure.measures import Measures
from numscope.core.dtypes import rounding_near_zero, unit_roundoff
from numscope.core.operators import Rounding, Trait, names_with, operator, operator_of_module

_ALIKE = 1e-5


class Ledger:
    """The two sides of a step, what is measured of them, and what has been found out so far."""

    def __init__(
        self,
        a: Side,
        b: Side,
        alignment: Alignment,
        slots: SlotPairs,
        measures: Measures,
        history: History,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.a, self.b, self.alignment, self.slots, self.measures = a, b, alignment, slots, measures
        self.history, self.two_precisions, self.elsewhere = history, history.precisions is not None, elsewhere
        self.errors: CallErrors = call_errors(a, b, alignment, slots, measures, self.two_precisions)
        self.flow_a, self.flow_b = flow(a), flow(b)
        self.start = np.searchsorted(slots.pair, np.arange(len(alignment.target) + 1))
        self.blind = not (records_inputs(a) and records_inputs(b))
        self.coarsest = history.precisions.roundoff if history.precisions is not None else 0.0
        # Relative: two tensors this near are the same intermediate result.
        self.alike = max(_ALIKE, 16.0 * self.coarsest)
        # Slot pairs that could not be compared because one side has no fingerprint.
        printed = a.tensors.measured[slots.a] & b.tensors.measured[slots.b]
        self.unmeasured: Flags = ~printed & ~measures.known[measures.row_of]
        self.composite = (a.calls.children[alignment.target] > 0) | (b.calls.children[alignment.reference] > 0)
        self.differences = self._differences()
        self.parts = batch_shapes(a, b, alignment, slots)
        self.forward_pair = forward_pairs(alignment, a)
        self.other_sources = other_sources(self.flow_a, self.flow_b, slots, measures.error[measures.row_of])
        self.solid = self._solid_pairs()
        self.partner_a, self.partner_b = np.full(len(a.calls), -1), np.full(len(b.calls), -1)
        self.partner_a[alignment.target] = np.where(self.solid, alignment.reference, -1)
        self.partner_b[alignment.reference] = np.where(self.solid, alignment.target, -1)
        self.known = self._known_pairs()
        self.backward_of: dict[int, list[int]] = {}
        linked = (a.calls.forward[alignment.target] >= 0) & ~a.calls.recompute[alignment.target]
        for pair in np.flatnonzero(linked).tolist():
            self.backward_of.setdefault(int(a.calls.forward[alignment.target[pair]]), []).append(pair)
        self.wrong_a, self.wrong_b = np.zeros(len(a.tensors.hash), np.bool_), np.zeros(len(b.tensors.hash), np.bool_)
        self.cause_a = np.full(len(a.tensors.hash), -1)
        self.error_a, self.error_b = np.zeros(len(a.tensors.hash)), np.zeros(len(b.tensors.hash))
        inner = {a.book.code("api"), a.book.code("aten")}
        self.coarse = not inner & {*distinct(a.calls.kind)[0].tolist(), *distinct(b.calls.kind)[0].tolist()}
        self.suspicions: list[Suspicion] = []
        # Row of a call that lost its solidity → the suspicions of what it was given.
        self.suspicions_of: dict[int, list[int]] = {}
        self.suspicions_of_reference: dict[int, list[int]] = {}
        # Calls without counterpart that led to a right result.
        self.cleared_a: set[int] = set()
        self.cleared_b: set[int] = set()
        self.verdict = np.full(len(alignment.target), EQUIVALENT)
        self.verdict[self.errors.identical] = IDENTICAL
        self.cause_of: dict[int, int] = {}  # pair → suspicion
        self.worst_right = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0, "input": 0.0}

    # Set-up ---------------------------------------------------------------------------------------------------------

    def _differences(self) -> dict[int, list[Difference]]:
        a, b, al = self.a, self.b, self.alignment
        words = a.book.words
        found = {}
        unlike = a.calls.arguments[al.target] != b.calls.arguments[al.reference]
        same_op = a.calls.op[al.target] == b.calls.op[al.reference]
        for pair in np.flatnonzero(unlike & same_op).tolist():
            x, y = a.calls.arguments[al.target[pair]], b.calls.arguments[al.reference[pair]]
            op_name = words[a.calls.op[al.target[pair]]]
            got = differences(words[x] if x >= 0 else None, words[y] if y >= 0 else None, op_name)
            if got:
                found[pair] = got
        return found

    def _solid_pairs(self) -> Flags:
        """Return which pairs do the same job: every tensor given to one has its counterpart, of the same size, given to
        the other. What a pair that is not solid computes is judged by where it leads."""
        a, b, al = self.a, self.b, self.alignment
        solid = np.ones(len(al.target), np.bool_)
        unlike_op = a.calls.op[al.target] != b.calls.op[al.reference]
        solid[(al.why != MAP) & unlike_op] = False
        given = self.slots.role == INPUT
        unlike_size = a.tensors.elements[self.slots.a] != b.tensors.elements[self.slots.b] if len(given) else given
        solid[self.slots.pair[given & (unlike_size | self.other_sources)]] = False
        leaf = ~self.composite
        made = (self.slots.role == OUTPUT) & unlike_size if len(given) else given
        solid[self.slots.pair[made]] &= ~leaf[self.slots.pair[made]]
        if self.parts:
            solid[loading(self.flow_a, al, self.differences)] = False
        for side, rows, calls, place in (
            (a, self.slots.alone_a, al.target, 0),
            (b, self.slots.alone_b, al.reference, 1),
        ):
            if not len(rows):
                continue
            pair_of = np.full(len(side.calls), -1)
            pair_of[calls] = np.arange(len(calls))
            for row in rows.tolist():
                pair = int(pair_of[side.slots.call[row]])
                head = side.book.words[side.slots.slot[row]].partition(".")[0]
                given = head in ("input", "kwargs") and not self.blind
                if pair >= 0 and given and not self._as_number(side, row, pair, place):
                    solid[pair] = False
        pair_of = np.full(len(a.calls), -1)
        pair_of[al.target] = np.arange(len(al.target))
        forward = pair_of[np.maximum(a.calls.forward[al.target], 0)]
        has = (a.calls.forward[al.target] >= 0) & (forward >= 0)
        solid[has & ~solid[np.maximum(forward, 0)]] = False
        return solid

    def _as_number(self, side: Side, row: int, pair: int, place: int) -> bool:
        """Return whether a one-element tensor on one side stands for a plain number among the other's arguments."""
        tensor = int(side.slots.tensor[row])
        if tensor < 0 or side.tensors.elements[tensor] != 1:
            return False
        other = self.b if place == 0 else self.a
        call = int((self.alignment.reference if place == 0 else self.alignment.target)[pair])
        code = int(other.calls.arguments[call])
        key = side.book.words[side.slots.slot[row]].partition(".")[2]
        value = numbers(other.book.words[code]).get(key) if code >= 0 else None
        if value is None:
            return False
        mine = float(side.tensors.mean[tensor])
        if abs(mine - value) > 1e-6 * max(abs(mine), abs(value)):
            values = (mine, value) if place == 0 else (value, mine)
            self.differences.setdefault(pair, []).append(Difference(key, *values, telling=True))
        return True

    def _known_pairs(self) -> Ints:
        """Return, for each tensor of the target, the reference's tensor that the partner of its maker made, or -1."""
        known = np.full(len(self.a.tensors.hash), -1)
        made = np.flatnonzero((self.slots.role == OUTPUT) & self.solid[self.slots.pair])
        own = self.flow_a.producer[self.slots.a[made]] == self.alignment.target[self.slots.pair[made]]
        theirs = self.flow_b.producer[self.slots.b[made]] == self.alignment.reference[self.slots.pair[made]]
        rows = made[own & theirs]
        known[self.slots.a[rows]] = self.slots.b[rows]
        return known

    # Reading --------------------------------------------------------------------------------------------------------

    def rows(self, pair: int) -> range:
        return range(int(self.start[pair]), int(self.start[pair + 1]))

    def given(self, pair: int) -> list[int]:
        return [row for row in self.rows(pair) if self.slots.role[row] != OUTPUT]

    def made(self, pair: int) -> list[int]:
        return [row for row in self.rows(pair) if self.slots.role[row] == OUTPUT]

    def tensors(self, row: int) -> tuple[int, int]:
        return int(self.flow_a.same[self.slots.a[row]]), int(self.flow_b.same[self.slots.b[row]])

    def error(self, row: int) -> float:
        """Return the error of a slot pair; NaN where it is not known."""
        return float(self.measures.error[self.measures.row_of[row]])

    def size(self, row: int) -> float:
        """Return the error of a slot pair, 0 where it is not known."""
        error = self.error(row)
        return 0.0 if math.isnan(error) else error

    def phase(self, pair: int) -> str:
        return str(self.a.book.words[self.a.calls.phase[self.alignment.target[pair]]])

    def kind(self, pair: int) -> str:
        return str(self.a.book.words[self.a.calls.kind[self.alignment.target[pair]]])

    def order(self, pair: int) -> float:
        return float(self.alignment.target[pair])

    def pair_of(self, call: int) -> int:
        """Return the pair of a target's call, -1 for none."""
        found = np.flatnonzero(self.alignment.target == call)
        return int(found[0]) if len(found) else -1

    def place_of_reference(self, call: int) -> float:
        """Return where a call that only the reference has would stand in the target's order."""
        before = self.alignment.target[self.alignment.reference < call]
        return float(before.max(initial=-1)) + 0.5

    def slot(self, row: int) -> str:
        return str(self.a.book.words[self.slots.slot[row]])

    def operator_class(self, side: Side, row: int) -> int:
        if side.calls.kind[row] == side.book.code("module"):
            return operator(operator_of_module(side.book.words[side.calls.module_class[row]])).rounding
        return operator(side.book.words[side.calls.op[row]]).rounding

    def dtype(self, side: Side, tensor: int) -> str:
        return str(side.book.words[side.tensors.dtype[tensor]])

    def roundoff(self, t: int, r: int) -> float:
        """Return the unit roundoff that a pair of tensors may differ by: the coarser only between two precisions."""
        coarser = self.two_precisions or self.dtype(self.a, t) == self.dtype(self.b, r)
        return common_roundoff([self._roundoff(self.a, t), self._roundoff(self.b, r)], coarser)

    def _roundoff(self, side: Side, tensor: int) -> float:
        name, norm = self.dtype(side, tensor), float(side.tensors.l2[tensor])
        below = (
            rounding_near_zero(name) / float(side.tensors.scale[tensor]) * float(side.tensors.elements[tensor]) ** 0.5
        )
        return unit_roundoff(name) + (min(1.0, below / norm) if norm > 0 else 0.0)

    def told(self, pair: int) -> list[Difference]:
        """Return the arguments in which a pair of calls differs; those of its forward call for a backward one."""
        if pair not in self.differences and self.phase(pair) == "backward":
            pair = int(self.forward_pair[pair])
        return self.differences.get(pair, [])

    def scaled_error(self, row: int) -> float:
        """Return the part of the error that is a multiple of the result: rounding has none, a wrong factor is nothing else.

        Rounding's own part is about one over the root of the number of elements that count (a few huge ones may be all
        that do), and a sketch adds an eighth.
        """
        measure, t = self.measures.row_of[row], self.slots.a[row]
        correlation = abs(float(self.measures.columns["correlation"][measure]))
        largest = max(abs(self.a.tensors.min[t]), abs(self.a.tensors.max[t]))
        count = (self.a.tensors.l2[t] / largest) ** 2 if largest > 0 else 0.0
        if not count >= 256:
            return 0.0
        least = max(0.6 if self.measures.estimated[measure] else 0.25, 5.0 / count**0.5)
        return correlation * self.size(row) if correlation > least else 0.0

    def is_telling(self, row: int) -> bool:
        """Return whether agreement in this tensor means anything: a constant one agrees with whatever was masked out."""
        t = self.slots.a[row]
        low, high = self.a.tensors.min[t], self.a.tensors.max[t]
        return bool(low < high or (self.a.tensors.elements[t] == 1 and low not in (0.0, 1.0)))

    def is_open(self, cause: int) -> bool:
        """Return whether a cause was not withdrawn."""
        return cause < 0 or self.suspicions[cause].stands

    def anything_wrong(self) -> bool:
        return self.history.diverged or any(suspicion.stands for suspicion in self.suspicions)

    def follows_unseen(self, pair: int) -> bool:
        """Return whether what came into a pair was not recorded: then it is taken to be what ran before."""
        return self.blind and not is_source(self.a, int(self.alignment.target[pair]))

    def noise_so_far(self) -> float:
        """Return the largest error that rounding explained so far."""
        return max(self.history.noise, *self.worst_right.values())

    def first_cause(self) -> int:
        """Return the first suspicion that stands, -1 for something wrong in an earlier step."""
        return next((number for number, one in enumerate(self.suspicions) if one.stands), -1)

    # Writing --------------------------------------------------------------------------------------------------------

    def suspect(self, finding: Finding, firm: bool, at: int = -1) -> int:
        """Add a suspicion, which arose at the pair `at`, and return its number."""
        failed_at = self.order(at) - 0.5 if at >= 0 else finding.order
        self.suspicions.append(Suspicion(finding, firm, failed_at=failed_at, last=finding.relative, at=at))
        return len(self.suspicions) - 1

    def find(
        self,
        reason: Reason,
        pair: int,
        error: float,
        explained: float,
        came_in: float,
        *,
        slot: str = "",
        firm: bool = True,
    ) -> int:
        """Add a suspicion of a pair of calls and return its number."""
        row = int(self.alignment.target[pair])
        return self.suspect(
            Finding(
                reason,
                pair,
                row,
                int(self.alignment.reference[pair]),
                self.a.step,
                self.a.rank,
                float(row),
                error,
                explained,
                came_in,
                tuple(self.told(pair)),
                slot,
                random=bool(self.errors.operator[pair] == Rounding.RANDOM),
                dtypes=self._dtypes(pair),
                inputs=self._inputs_of(pair),
                batch_shapes=self.parts if isinstance(reason, DataOfAnotherSize) else "",
            ),
            firm,
            -1 if firm else pair,
        )

    def _inputs_of(self, pair: int) -> Inputs:
        if is_source(self.a, int(self.alignment.target[pair])) and not self.given(pair):
            return Inputs.NONE
        return Inputs.UNRECORDED if self.blind else Inputs.RECORDED

    def _dtypes(self, pair: int) -> Dtypes | None:
        for row in self.made(pair):
            t, r = self.tensors(row)
            mine, theirs = self.dtype(self.a, t), self.dtype(self.b, r)
            if mine != theirs:
                return Dtypes(mine, theirs)
        return None

    def mark_wrong(self, t: int, r: int, error: float, cause: int) -> None:
        self.wrong_a[t] = self.wrong_b[r] = True
        self.cause_a[t] = cause
        self.error_a[t] = self.error_b[r] = error

    def inherit(self, pair: int, cause: int) -> None:
        """Note that a pair of calls, and what it made, follows from something wrong."""
        self.verdict[pair] = INHERITED
        self.cause_of[pair] = cause
        for row in self.made(pair):
            if self.error(row) != 0:
                self.mark_wrong(*self.tensors(row), self.size(row), cause)

    def mark_right(self, t: int, r: int, error: float) -> None:
        self.error_a[t] = self.error_b[r] = error

    def note_right(self, pair: int, error: float) -> None:
        """Remember how large the errors are that rounding explains here."""
        own = self.errors.discrete_in[pair] or self.errors.name[pair] in names_with(Trait.SIGN_LIKE)
        if np.isfinite(error) and not own:
            phase = self.phase(pair)
            self.worst_right[phase] = max(self.worst_right[phase], error)

    def heal_by_gradients(self, order: float, blindly: bool = False) -> None:
        """Withdraw suspicions of what is differentiated, once all gradients together agree: it added up to the same; or,
        `blindly`, where all are shards and none can tell, but for calls whose arguments differ."""
        ahead, behind = (
            frozenset(calls.forward[(calls.forward >= 0) & ~calls.recompute].tolist())
            for calls in (self.a.calls, self.b.calls)
        )
        for suspicion in self.suspicions:
            row, finding = int(self.alignment.target[suspicion.at]) if suspicion.at >= 0 else -1, suspicion.finding
            told = blindly and any(difference.telling for difference in finding.differences)
            if row < 0 or suspicion.firm or not suspicion.stands or told:
                continue
            itself = finding.target in ahead or finding.reference in behind
            phases = {self.phase(suspicion.at), *self._phases(finding)}
            if itself or finding.batch_shapes or "backward" in phases or leads_to(self.flow_a, row, ahead):
                suspicion.healed_at = max(suspicion.healed_at, order)

    def _phases(self, finding: Finding) -> list[str]:
        sides = ((self.a, finding.target), (self.b, finding.reference))
        return [str(side.book.words[side.calls.phase[row]]) for side, row in sides if row >= 0]

    def loosen(self, pair: int, causes: list[int]) -> None:
        """A pair whose inputs do not correspond does not do the same job: judge it by where it leads."""
        target, reference = int(self.alignment.target[pair]), int(self.alignment.reference[pair])
        if causes:
            self.suspicions_of[target] = self.suspicions_of_reference[reference] = causes
        if not self.solid[pair]:
            return
        self.solid[pair] = False
        self.partner_a[target] = self.partner_b[reference] = -1
        for row in self.made(pair):
            self.known[self.slots.a[row]] = -1
        for behind in self.backward_of.get(target, ()):  # nor does its backward, whose agreement proves nothing here
            self.loosen(behind, [])

    def slot_wrong(self) -> Flags:
        """Return which slot pairs hold a wrong tensor, by a suspicion that stands."""
        if not len(self.slots.a):
            return np.zeros(0, np.bool_)
        stands = np.array([suspicion.stands for suspicion in self.suspicions] + [True], dtype=np.bool_)
        wrong_a = self.wrong_a & stands[self.cause_a]
        return np.asarray(wrong_a[self.flow_a.same[self.slots.a]])

    def limits(self, scale: float, noise: Floats | None) -> Floats:
        """Return what is explained at each pair, with the user's factor and the noise runs' measure."""
        limits = self.errors.expected * scale
        if self.blind:
            limits = loosened(limits, self.errors.operator, self.errors.roundoff)
        return limits if noise is None else np.fmax(limits, 4.0 * np.nan_to_num(noise))
