"""Errors average out, faults do not: how each call changes the norm and the mean of what passes through it.

Rounding has no direction. Of n elements that are off by a relative error e in random directions, the norm and the mean move
by about e/√n; a systematic fault (another formula, an eps, a scale, a wrong kernel) moves them by its own size. So a call
is held against its own sampling error, and against its siblings: calls of the same operator on the same source line, in
other layers. It is named where it stands out far beyond both, though its relative L2 error would pass as rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.slots import OUTPUT, SlotPairs
from numscope.compare.load.side import Flags, Floats, Ints, Side, distinct
from numscope.compare.measure.measures import Measures
from numscope.core.dtypes import is_discrete
from numscope.core.operators import MULTIPLIES, Rounding, operator

# Of 872 calls with siblings in the clean pairs of tests/corpus that differ, the most is 5.7; normal numbers reach 7 once in
# 10¹⁰ calls.
STANDS_OUT = 7.0
# Where arguments differ, there is one call to ask about and not thousands: normal numbers reach 3 once in 90 calls.
WITH_OTHER_ARGUMENTS = 3.0
# Products, powers and modules mix elements, so that their errors are not as many as their elements: the 95th percentile
# in the clean pairs of the corpus (3.9 of 3,622 products, 4.9 of 806 steep functions, 3.9 of 7,939 modules; 0.5 of others).
SPREAD_OF_MIXING = 4.0
_MIXING = (*MULTIPLIES, Rounding.STEEP, Rounding.FOURIER, Rounding.OTHER, Rounding.COMMUNICATE)
LEAST_SIBLINGS = 3  # the largest of so many says what rounding does on this line
_LEAST_ELEMENTS = 64  # over which anything averages out
_MOST_ERROR = 0.1  # relative: beyond it an error is no small change any more, and does not average out
_STATISTICS = 1e-6  # relative: how far the norms of a fingerprint may be off (fingerprint/definition.py)
_CARRIED = 2.0  # a change of the inputs' moments comes out at most so much larger: a square doubles it


@dataclass(frozen=True)
class StandOut:
    """A change across a call that rounding, which has no direction, would not make, and that its siblings do not show."""

    norm: float  # change across the call, relative
    mean: float  # … as a share of the root mean square
    times: float  # as far as rounding, or the farthest of its siblings, makes it
    siblings: int

    def sentence(self) -> str:
        """Return the change in words."""
        size = f"its norm changes by {self.norm:+.1e} and its mean by {self.mean:+.1e}"
        others = f"its {self.siblings} siblings do" if self.siblings else "rounding does"
        return f"{size}, {self.times:.0f} × what {others}"


class _Shift:
    """Changes of the norm and the mean from the reference to the target, and their sampling errors, per row."""

    def __init__(self, a: Side, b: Side, t: Ints, r: Ints, error: Floats) -> None:
        count = a.tensors.elements[t].astype(np.float64)
        target, reference = a.tensors.l2[t], b.tensors.l2[r]
        with np.errstate(all="ignore"):
            norm = np.log(target / reference)
            mean = (a.tensors.mean[t] - b.tensors.mean[r]) * np.sqrt(count) / reference
            sampling = np.hypot(error / np.sqrt(count), _STATISTICS)
            self.known = (count == b.tensors.elements[r]) & np.isfinite(norm + mean + sampling)
        self.norm, self.mean, self.error = (
            np.where(self.known & (error > 0), column, 0.0) for column in (norm, mean, error)
        )
        self.sampling = np.where(self.known, sampling, _STATISTICS)
        self.elements = count


class Moments:
    """The changes across the calls of a step."""

    def __init__(self, a: Side, b: Side, alignment: Alignment, slots: SlotPairs, measures: Measures) -> None:
        self._a, self._b = a, b
        pairs = len(alignment.target)
        error = measures.error[measures.row_of]
        self._shift = shift = _Shift(a, b, slots.a, slots.b, error)
        made = slots.role == OUTPUT

        def over_inputs(column: Floats) -> Floats:
            each = np.bincount(slots.pair[~made], weights=column[~made], minlength=pairs)
            return each.astype(np.float64)[slots.pair]

        given_norm, given_mean = over_inputs(np.abs(shift.norm)), over_inputs(np.abs(shift.mean))
        spread, grown = over_inputs(shift.sampling**2), over_inputs(shift.error**2)
        calls = a.calls
        rows = alignment.target[slots.pair]
        codes, place = distinct(calls.op)
        classes = [operator(a.book.words[code]).rounding if code >= 0 else Rounding.OTHER for code in codes.tolist()]
        kinds = np.array(classes, dtype=np.int64)
        jumps = np.isin(kinds, (Rounding.DISCRETE, Rounding.RANDOM))[place]
        numbers = np.array([not is_discrete(word) for word in a.book.words] + [False])[a.tensors.dtype[slots.a]]
        is_module = calls.kind[rows] == a.book.code("module")
        whole = (calls.phase[rows] == a.book.code("forward")) & ((calls.children[rows] == 0) | is_module)
        given = np.bincount(slots.pair[~made], weights=shift.elements[~made], minlength=pairs)[slots.pair]
        chosen = (kinds[place][rows] == Rounding.MOVE) & (shift.elements != given)  # a part has moments of its own
        usable = made & whole & ~jumps[rows] & ~chosen & numbers & shift.known
        usable &= (shift.error <= _MOST_ERROR) & (shift.elements >= _LEAST_ELEMENTS)
        self._usable = usable
        beyond = np.hypot(
            _beyond(shift.norm, given_norm, grown + shift.error**2),
            _beyond(shift.mean, given_mean, 0.0),
        )
        work = np.where(is_module, -2 - calls.module_class[rows], calls.op[rows])  # a module's operator is its path
        line = np.stack([work, calls.stack[rows], slots.slot], 1)
        # A fault adds to the error itself: where the siblings are less far off, their errors say how rounding averages out.
        differing, of_siblings = _others(line, usable & (shift.error > 0), shift.sampling)
        self._sampling = sampling = np.where(
            differing >= LEAST_SIBLINGS, np.fmin(shift.sampling, of_siblings), shift.sampling
        )
        self._score = np.where(usable, beyond / np.sqrt(sampling**2 + spread), 0.0)
        self._siblings, farthest = _others(line, usable, self._score)
        mixes = (calls.children[rows] > 0) | np.isin(kinds[place][rows], _MIXING)
        self._spread = np.maximum(farthest, np.where(mixes, SPREAD_OF_MIXING, 1.0))

    def across(self, rows: Sequence[int], other_arguments: bool = False) -> StandOut | None:
        """Return how a call stands out by one of its outputs, None where it does not."""
        for row in rows:
            found = self._judged(row, other_arguments)
            if found is not None:
                return found
        return None

    def _judged(self, row: int, other_arguments: bool) -> StandOut | None:
        siblings, spread, score = int(self._siblings[row]), float(self._spread[row]), float(self._score[row])
        enough = siblings >= LEAST_SIBLINGS or other_arguments
        if not enough or not score > spread * (WITH_OTHER_ARGUMENTS if other_arguments else STANDS_OUT):
            return None
        return StandOut(float(self._shift.norm[row]), float(self._shift.mean[row]), score / spread, siblings)


def _beyond(change: Floats, given: Floats, grown: Floats | float) -> Floats:
    """Return what is left of a change once that of the inputs is taken off, and what an error of no direction adds.

    ‖y + δ‖² = ‖y‖² + ‖δ‖² where δ is orthogonal to y: an error e makes a norm larger by e²/2.
    """
    return np.asarray(np.maximum(np.abs(change) - _CARRIED * given - grown, 0.0))


def _others(line: Ints, usable: Flags, score: Floats) -> tuple[Ints, Floats]:
    """Return, for each row, how many others stand on its line, and the largest score among them."""
    siblings, farthest = np.zeros(len(score), np.int64), np.zeros(len(score))
    rows = np.flatnonzero(usable)
    if not len(rows):
        return siblings, farthest
    _, group = np.unique(line[rows], axis=0, return_inverse=True)
    group = group.reshape(-1)
    order = np.lexsort((score[rows], group))
    rows, group = rows[order], group[order]
    last = np.searchsorted(group, group, side="right") - 1
    count = last - np.searchsorted(group, group, side="left") + 1
    # In each group the largest is the last one, and for that one itself the one before.
    at = np.where(np.arange(len(rows)) == last, last - 1, last)
    siblings[rows] = count - 1
    farthest[rows] = np.where(count > 1, score[rows][np.maximum(at, 0)], 0.0)
    return siblings, farthest
