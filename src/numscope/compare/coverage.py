"""The share of a step's gradients that was compared, and the results that were compared with nothing.

A tensor in the middle of a call whose result was compared is no lack: a fault there would show in that result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.slots import OUTPUT, SlotPairs
from numscope.compare.load.side import Flags, Floats, Ints, Side
from numscope.compare.measure.measures import Measures
from numscope.core.dtypes import SINGLE, unit_roundoff

GRADIENT = "parameters_grad"
# A norm is off by no more than its vector, and the others are taken to be as far off as those that were compared, times
# this. One of two shards has 0.7 of the norm, so that a tenth is the most.
_TIMES, _MOST = 16.0, 0.1
# Why a slot has no fingerprint, where nothing was lost: it holds no values, or its values are seen at a later call.
_NO_VALUES = (
    "uninitialised memory",
    "meta tensor",
    "no data",
    "FakeTensor has no data",
    "FunctionalTensor has no data",
)
_SEEN_LATER = ("not waited for", "AsyncCollectiveTensor not waited for", "inside a torch.func transform")


@dataclass(frozen=True)
class GradientShare:
    """How many gradients of one side reach its optimizers, and how many of them were compared; weights are squared norms."""

    count: int = 0
    known: int = 0  # that have a norm
    measured: int = 0
    weight: float = 0.0
    measured_weight: float = 0.0

    @property
    def share(self) -> float | None:
        """The share that was compared, by norm; by number where the norms are not known; None where there is none."""
        if not self.count:
            return None
        return self.measured_weight / self.weight if self.weight > 0 else self.measured / self.count

    def rest_agrees(self, other: GradientShare, tolerance: float) -> bool:
        """Tell whether the gradients that have no counterpart are as large, all together, as those of the other side.

        Parameters that were fused, split, transposed or renamed keep the norm of all their gradients.
        """
        mine, theirs = (math.sqrt(max(one.weight - one.measured_weight, 0.0)) for one in (self, other))
        return (
            self.known == self.count
            and other.known == other.count
            and abs(mine - theirs) <= tolerance * max(mine, theirs)
        )

    def whole(self) -> GradientShare:
        """Return the share with all gradients measured."""
        return replace(self, measured=self.count, measured_weight=self.weight)

    def __add__(self, other: GradientShare) -> GradientShare:
        return GradientShare(
            self.count + other.count,
            self.known + other.known,
            self.measured + other.measured,
            self.weight + other.weight,
            self.measured_weight + other.measured_weight,
        )


@dataclass(frozen=True)
class StepCoverage:
    """The coverage of one step of one rank."""

    target: GradientShare = field(default_factory=GradientShare)
    reference: GradientShare = field(default_factory=GradientShare)
    unmeasured: dict[str, int] = field(default_factory=dict)  # results that were compared with nothing, by reason
    batch_parts: bool = False  # the two sides are given parts of other sizes of a batch
    same_calls: bool = True  # no call is on one side only
    all_ranks: bool = False  # all ranks of both runs were compared as one


def step_coverage(
    a: Side, b: Side, alignment: Alignment, slots: SlotPairs, measures: Measures, batch_parts: bool
) -> StepCoverage:
    """Return what of one step of one rank was compared."""
    measured = measures.compared
    target = _gradients(a, alignment.target, slots, slots.a, measured)
    reference = _gradients(b, alignment.reference, slots, slots.b, measured)
    if target.rest_agrees(reference, min(_TIMES * _joint_error(a, b, slots, measures), _MOST)):
        target, reference = target.whole(), reference.whole()
    return StepCoverage(
        target,
        reference,
        {} if batch_parts else _unmeasured_results(a, b, alignment, slots, measured),
        batch_parts,
        not (len(alignment.alone_target) or len(alignment.alone_reference)),
    )


def _joint_error(a: Side, b: Side, slots: SlotPairs, measures: Measures) -> float:
    """Return the relative error of the gradients that were compared, as one vector; at least what their dtypes round."""
    rows = np.flatnonzero(measures.compared & _having(a, slots.slot, GRADIENT))
    words = a.book.words
    dtypes = {words[code] for code in (*a.tensors.dtype[slots.a[rows]], *b.tensors.dtype[slots.b[rows]])}
    distance: Floats = measures.columns["euclid"][measures.row_of[rows]]
    norm = math.sqrt(_weight(b, slots.b[rows]))
    apart = math.sqrt(float(np.square(distance[np.isfinite(distance)]).sum()))
    return max([SINGLE, *map(unit_roundoff, dtypes), apart / norm if norm > 0 else 0.0])


def _gradients(side: Side, calls: Ints, slots: SlotPairs, tensors: Ints, measured: Flags) -> GradientShare:
    """Return how many of the gradients that reach a side's optimizers were compared.

    Where no optimizer was recorded: of the gradients that the modules of both sides have.
    """
    to_optimizer = side.calls.kind == side.book.code("optimizer")
    paired = _having(side, slots.slot, GRADIENT)
    given = _having(side, side.slots.slot, GRADIENT) & to_optimizer[side.slots.call]
    if given.any():
        every, paired = side.slots.tensor[given], paired & to_optimizer[calls[slots.pair]]
    else:
        every = tensors[paired]
    those = tensors[paired & measured]
    known = every[every >= 0]
    return GradientShare(len(every), len(known), len(those), _weight(side, known), _weight(side, those))


def _weight(side: Side, tensors: Ints) -> float:
    norms: Floats = np.nan_to_num(side.tensors.l2[tensors], posinf=0.0)
    return float(np.square(norms).sum())


def _having(side: Side, slots: Ints, head: str) -> Flags:
    """Return which slots are of a group: `parameters_grad` is that of `parameters_grad.weight`."""
    words = np.array([word.partition(".")[0] == head for word in side.book.words] + [False])
    return np.asarray(words[slots])


def _unmeasured_results(a: Side, b: Side, alignment: Alignment, slots: SlotPairs, measured: Flags) -> dict[str, int]:
    """Return the results of forward calls that were compared with nothing, by reason.

    Not those inside a call whose own results were all compared, nor those of another shape from which a later result
    is made that was compared.
    """
    made = slots.role == OUTPUT
    of_shape = made & ~measured & a.tensors.measured[slots.a] & b.tensors.measured[slots.b]
    noted = [_noted(one, calls) for one, calls in ((a, alignment.target), (b, alignment.reference))]
    if not of_shape.any() and not any(noted):
        return {}
    pairs = len(alignment.target)
    shown = np.zeros(pairs, np.bool_)
    shown[slots.pair[made]] = True
    shown[slots.pair[made & ~measured]] = False
    for reasons in noted:
        shown[list(reasons)] = False
    is_inside = _inside_shown(a, alignment, shown)
    forward = (a.calls.phase == a.book.code("forward"))[alignment.target]
    counted = forward & ~is_inside & ~np.isin(a.calls.kind[alignment.target], _codes(a, "optimizer", "data"))
    found: dict[str, int] = {}
    lacking = of_shape & counted[slots.pair]
    if lacking.any():
        lacking &= ~_leading_to(a, slots.a[measured])[slots.a]
    if count := int(lacking.sum()):
        found["in another shape than its counterpart"] = count
    target, reference = noted
    for pair in sorted({*target, *reference}):
        if counted[pair]:
            reason = target.get(pair) or reference[pair]
            found[reason] = found.get(reason, 0) + 1
    return found


def _leading_to(side: Side, tensors: Ints) -> Flags:
    """Return which tensors of a side are these, or are given to calls that lead to one of them.

    Equal contents are one tensor: in inference mode capture cannot tell that what a call is given was made before.
    """
    same = _by_content(side)
    leads = np.zeros(len(same), np.bool_)
    leads[same[tensors]] = True
    start, tensor, made = side.slots.start, side.slots.tensor, _having(side, side.slots.slot, "output")
    for row in range(len(side.calls) - 1, -1, -1):
        own = slice(start[row], start[row + 1])
        known = tensor[own] >= 0
        if leads[same[tensor[own][known & made[own]]]].any():
            leads[same[tensor[own][known]]] = True
    return leads[same]


def _by_content(side: Side) -> Ints:
    """Return, for each tensor, the first of the same bits, dtype and shape; zeros and what was not measured are themselves."""
    tensors = side.tensors
    same = np.arange(len(tensors.l2))
    telling = np.flatnonzero(tensors.measured & (tensors.zero < tensors.elements))
    columns = tensors.hash[telling], tensors.shape[telling].astype(np.uint64), tensors.dtype[telling].astype(np.uint64)
    if len(telling):
        _, first, place = np.unique(np.stack(columns, 1), axis=0, return_index=True, return_inverse=True)
        same[telling] = telling[first[place.reshape(-1)]]
    return same


def _codes(side: Side, *words: str) -> list[int]:
    return [side.book.code(word) for word in words]


def _noted(side: Side, calls: Ints) -> dict[int, str]:
    """Return the reason why a result was not measured, by pair of calls."""
    without = np.flatnonzero((side.slots.tensor < 0) & (side.slots.note >= 0))
    if not len(without):
        return {}
    words, pair_of = side.book.words, np.full(len(side.calls), -1)
    pair_of[calls] = np.arange(len(calls))
    found: dict[int, str] = {}
    for row in without.tolist():
        pair, reason = int(pair_of[side.slots.call[row]]), words[side.slots.note[row]]
        if pair >= 0 and words[side.slots.slot[row]].startswith("output") and reason not in (*_NO_VALUES, *_SEEN_LATER):
            found.setdefault(pair, reason)
    return found


def _inside_shown(a: Side, alignment: Alignment, shown: Flags) -> Flags:
    """Return which pairs lie inside a call whose results were all compared."""
    shows = np.zeros(len(a.calls), np.bool_)
    shows[alignment.target] = shown
    inside = np.zeros(len(a.calls), np.bool_)
    for row, parent in enumerate(a.calls.parent.tolist()):  # a call begins after the one around it
        if parent >= 0:
            inside[row] = inside[parent] or shows[parent]
    return np.asarray(inside[alignment.target])
