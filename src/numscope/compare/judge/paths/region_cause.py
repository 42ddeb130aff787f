"""Names what stands between two tensors that should be the same and the nearest ones that are.

Calls that one side alone has, pairs that do not do the same job, a call that writes into a tensor which others still
hold, or the call that is given another tensor: of these the first in the order of running.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from numscope.compare.align.pairing import VALUE
from numscope.compare.align.slots import OUTPUT
from numscope.compare.judge.findings import Finding, Reason
from numscope.compare.judge.ledger import Ledger
from numscope.compare.judge.paths.counterparts import alike, crossed
from numscope.compare.judge.paths.dataflow import Flow, Region, region
from numscope.compare.judge.reasons import (
    AnotherLayout,
    AnotherTensor,
    DoesAnotherJob,
    GradientOnOneSide,
    UnrecordedWork,
    WritesInPlace,
    one_sided_call,
)
from numscope.compare.judge.rules.gradients import lone_gradient
from numscope.compare.load.side import Ints, Side
from numscope.compare.measure.measures import filled
from numscope.core.operators import IDLE, Rounding

_MOST = 10_000  # pairs of intermediate results that are compared

Regions = tuple[Region, Region]
Sizes = tuple[float, float, float]  # error, what is explained of it, error at the entrance


def between_them(ledger: Ledger, pair: int, row: int, regions: Regions, sizes: Sizes) -> Finding:
    """Name what makes a slot's two tensors differ, though what leads into their regions is right."""
    ahead, behind = narrowed(ledger, row, regions)
    told = _first_told(ledger, ahead, behind)
    if told >= 0:
        return _of_pair(ledger, told, sizes, DoesAnotherJob())
    return replace(_named(ledger, pair, row, (ahead, behind), sizes), batch_shapes=ledger.parts)


def _named(ledger: Ledger, pair: int, row: int, regions: Regions, sizes: Sizes) -> Finding:
    ahead, behind = regions
    paired_a, paired_b = _paired(ledger)
    alone_a = _doubted([x for x in ahead.calls if x not in paired_a], ledger.cleared_a)
    alone_b = _doubted([y for y in behind.calls if y not in paired_b], ledger.cleared_b)
    drawn_a, drawn_b = _drawn(ledger, ledger.flow_a, alone_a), _drawn(ledger, ledger.flow_b, alone_b)
    if bool(drawn_a) != bool(drawn_b):  # what else one side does may be another way to do the same; to draw is not
        alone_a, alone_b = drawn_a, drawn_b
    extra, missing = _most_active(ledger, ledger.a, alone_a), _most_active(ledger, ledger.b, alone_b)
    extra, missing = _first_run(ledger.a, extra, paired_a), _first_run(ledger.b, missing, paired_b)
    extra, missing = _other_move(ledger, (ahead, behind), (paired_a, paired_b)) or (extra, missing)
    paired = [x for x in ahead.calls if x in paired_a]
    name = ledger.a.calls.name(int(ledger.alignment.target[pair]))
    if extra >= 0 or missing >= 0:
        first = _first_pair(ledger, paired, behind, extra, missing)
        if first >= 0:
            return _of_pair(ledger, first, sizes, DoesAnotherJob())
        first = _other_layout(ledger, ahead, behind)
        if first >= 0:
            return _of_pair(ledger, first, sizes, AnotherLayout())
        order = float(extra) if extra >= 0 else ledger.place_of_reference(missing)
        place = (ledger.a.step, ledger.a.rank, order)
        return Finding(one_sided_call(extra, name), -1, extra, missing, *place, *sizes, slot=ledger.slot(row))
    if paired:
        first = ledger.pair_of(_most_active(ledger, ledger.a, paired))
        lone = lone_gradient(ledger, first)
        if lone is not None:
            return _of_pair(ledger, lone.pair, sizes, GradientOnOneSide(lone.who), slot=lone.slot)
        swapped = next((given for given in ledger.given(first) if crossed(ledger, given)), None)
        if swapped is not None:
            return _of_pair(ledger, first, sizes, AnotherTensor(), slot=ledger.slot(swapped))
        return _of_pair(ledger, first, sizes, DoesAnotherJob())
    t, r = ledger.tensors(row)
    if ledger.flow_a.producer[t] < 0 or ledger.flow_b.producer[r] < 0:
        return _of_pair(ledger, pair, sizes, UnrecordedWork(), slot=ledger.slot(row))
    writer = _writer(ledger, t, r)
    if writer >= 0:
        return _of_pair(ledger, writer, sizes, WritesInPlace(name))
    chosen = _last_maker(ledger, pair, t, r)
    if chosen is not None:
        target, reference = chosen
        if target >= 0 and reference >= 0:
            return _of_pair(ledger, ledger.pair_of(target), sizes, DoesAnotherJob())
        order = float(target) if target >= 0 else ledger.place_of_reference(reference)
        where = (ledger.a.step, ledger.a.rank, order)
        return Finding(one_sided_call(target, name), -1, target, reference, *where, *sizes, slot=ledger.slot(row))
    return _of_pair(ledger, pair, sizes, AnotherTensor(), slot=ledger.slot(row))


def _first_told(ledger: Ledger, ahead: Region, behind: Region) -> int:
    """Return the first pair of a region whose arguments differ in a way that changes numbers, -1 for none."""
    for pair in sorted(ledger.differences):
        x, y = int(ledger.alignment.target[pair]), int(ledger.alignment.reference[pair])
        told = any(difference.telling for difference in ledger.differences[pair])
        if told and x in ahead.calls and y in behind.calls:
            return pair
    return -1


def _paired(ledger: Ledger) -> tuple[set[int], set[int]]:
    """Return the calls of both sides that have a counterpart: not one of another operator that only gives nearly the same."""
    alignment, a, b = ledger.alignment, ledger.a, ledger.b
    alike = (alignment.why != VALUE) | (a.calls.op[alignment.target] == b.calls.op[alignment.reference])
    return set(alignment.target[alike].tolist()), set(alignment.reference[alike].tolist())


def _doubted(calls: list[int], cleared: set[int]) -> list[int]:
    """Leave out calls that led to a right result before: a mask which the first layer used, too. All, if none is left."""
    return [call for call in calls if call not in cleared] or calls


def _of_pair(ledger: Ledger, pair: int, sizes: Sizes, reason: Reason, slot: str = "") -> Finding:
    target, reference = int(ledger.alignment.target[pair]), int(ledger.alignment.reference[pair])
    differ = tuple(ledger.differences.get(pair, ()))
    place = (ledger.a.step, ledger.a.rank, float(target))
    return Finding(reason, pair, target, reference, *place, *sizes, differ, slot=slot)


def _most_active(ledger: Ledger, side: Side, calls: list[int]) -> int:
    """Return the first call that computes, else the first at all, -1 for none; a gradient's way is cut where it begins."""
    backward = side.book.code("backward")
    working = [x for x in calls if ledger.operator_class(side, x) not in IDLE or side.calls.phase[x] == backward]
    return min(working or calls, default=-1)


def _drawn(ledger: Ledger, flow: Flow, calls: list[int]) -> list[int]:
    """Return the calls that draw random numbers and have changed what they were given: no dropout of nothing."""
    found, side = [], flow.side
    for call in calls:
        here = slice(side.slots.start[call], side.slots.start[call + 1])
        tensors, given = side.slots.tensor[here], flow.role[here] != OUTPUT
        if ledger.operator_class(side, call) == Rounding.RANDOM and given.any():
            hashes = [side.tensors.hash[tensors[rows & (tensors >= 0)]] for rows in (given, ~given)]
            if not np.isin(hashes[1], hashes[0]).any():
                found.append(call)
    return found


def _other_move(ledger: Ledger, regions: Regions, paired: tuple[set[int], set[int]]) -> tuple[int, int] | None:
    """Return two calls that only move elements, of which each side alone has one: from the same tensor they make
    others of the same shape, `repeat` here and `repeat_interleave` there."""
    moves: list[list[tuple[int, int, int]]] = []  # of each side: what is given, what is made, and the call
    for side, flow, part, others in (
        (ledger.a, ledger.flow_a, regions[0], paired[0]),
        (ledger.b, ledger.flow_b, regions[1], paired[1]),
    ):
        lone = [
            call for call in part.calls if call not in others and ledger.operator_class(side, call) == Rounding.MOVE
        ]
        ends = {*part.frontier, *part.sources}
        moves.append(
            [
                (given[0], made, call)
                for call in lone
                if len(given := flow.inputs(call)) == 1 and given[0] in ends
                for made in _results(flow, Region((call,), (), (), complete=True)).tolist()
            ]
        )
    for given_a, made_a, x in moves[0]:
        for given_b, made_b, y in moves[1]:
            same_given = alike(ledger, given_a, given_b)
            same_shape = ledger.a.tensors.shape[made_a] == ledger.b.tensors.shape[made_b]
            if same_given and same_shape and not alike(ledger, made_a, made_b):
                return x, y
    return None


def _first_run(side: Side, call: int, paired: set[int]) -> int:
    """Return the forward call of a backward call that one side alone has, where that is alone too: it ran first."""
    forward = int(side.calls.forward[call]) if call >= 0 and not side.calls.recompute[call] else -1
    return forward if forward >= 0 and forward not in paired else call


def _first_pair(ledger: Ledger, paired: list[int], behind: Region, extra: int, missing: int) -> int:
    """Return the first pair that does another job from the same inputs, if it runs before the calls that are alone."""
    for x in sorted(paired):
        pair = ledger.pair_of(x)
        y = int(ledger.alignment.reference[pair])
        same_given = all(ledger.error(row) == 0 for row in ledger.given(pair))
        late = (extra >= 0 and x > extra) or (missing >= 0 and y > missing)
        if y in behind.calls and not late and same_given and ledger.given(pair) and x not in ledger.suspicions_of:
            return pair
    return -1


def _other_layout(ledger: Ledger, ahead: Region, behind: Region) -> int:
    """Return, where nothing but layouts is between, the pair at the entrance that lays out the same in another shape."""
    for side, calls in ((ledger.a, ahead.calls), (ledger.b, behind.calls)):
        if any(ledger.operator_class(side, call) != Rounding.MOVE for call in calls):
            return -1
    for t in sorted(ahead.frontier):
        r = int(ledger.known[t])
        if r in behind.frontier and ledger.a.tensors.shape[t] != ledger.b.tensors.shape[r]:
            pair = ledger.pair_of(int(ledger.flow_a.producer[t]))
            if pair in ledger.differences:
                return pair
    return -1


def _writer(ledger: Ledger, t: int, r: int) -> int:
    """Return the pair of which one side alone writes into its input, where that is why the two tensors differ, or -1."""
    x, y = int(ledger.flow_a.producer[t]), int(ledger.flow_b.producer[r])
    for target, reference in ((x, int(ledger.partner_a[x])), (int(ledger.partner_b[y]), y)):
        if target < 0 or reference < 0:
            continue
        kept = r in ledger.flow_b.inputs(reference) if target == x else t in ledger.flow_a.inputs(target)
        if kept and ledger.a.writes_in_place(target) != ledger.b.writes_in_place(reference):
            return ledger.pair_of(target)
    return -1


def _last_maker(ledger: Ledger, pair: int, t: int, r: int) -> tuple[int, int] | None:
    """Return the call that chose a tensor which an earlier call had made before, if the other side has none like it.

    `alphas[0]` once more gives what the first gave: the flow leads to the first, which is right.
    """
    alignment = ledger.alignment
    x = _again(ledger.flow_a, ledger.a, t, int(alignment.target[pair]))
    y = _again(ledger.flow_b, ledger.b, r, int(alignment.reference[pair]))
    if x >= 0 and ledger.partner_a[x] < 0:
        where = np.flatnonzero(alignment.target == x)
        return x, int(alignment.reference[where[0]]) if len(where) else -1
    if y >= 0 and ledger.partner_b[y] < 0:
        where = np.flatnonzero(alignment.reference == y)
        return int(alignment.target[where[0]]) if len(where) else -1, y
    return None


def _again(flow: Flow, side: Side, tensor: int, before: int) -> int:
    """Return the last call before another that has a tensor among its outputs and was not given it, -1 for none."""
    rows = np.flatnonzero((side.slots.tensor >= 0) & (flow.role == OUTPUT))
    calls = side.slots.call[rows[flow.same[side.slots.tensor[rows]] == tensor]]
    for call in sorted(calls[(calls < before) & (side.calls.children[calls] == 0)].tolist(), reverse=True):
        if tensor not in flow.inputs(call):
            return int(call)
    return -1


def narrowed(ledger: Ledger, row: int, regions: Regions, most: float = 1.0) -> Regions:
    """Return the regions from the last intermediate results on that both sides have, whatever calls they come from, or that
    were made before by calls which correspond.

    Results that differ by more than `most` are not the same.
    """
    t, r = ledger.tensors(row)
    inner_a, inner_b = _results(ledger.flow_a, regions[0]), _results(ledger.flow_b, regions[1])
    ends_a, ends_b = _in_both(ledger, (t, r), (inner_a, inner_b), most)
    ends_a |= _made_before(ledger, ledger.flow_a, inner_a, ledger.partner_a) - {t}
    ends_b |= _made_before(ledger, ledger.flow_b, inner_b, ledger.partner_b) - {r}
    if not ends_a and not ends_b:
        return regions
    return region(ledger.flow_a, t, ledger.partner_a, ends_a), region(ledger.flow_b, r, ledger.partner_b, ends_b)


def _in_both(
    ledger: Ledger, but: tuple[int, int], inner: tuple[Ints, Ints], most: float
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the results of two regions that are the same on both sides, besides the two that are not."""
    if not len(inner[0]) or not len(inner[1]) or len(inner[0]) * len(inner[1]) > _MOST:
        return frozenset(), frozenset()
    a, b = ledger.a.tensors, ledger.b.tensors
    place_a, place_b = np.nonzero(a.shape[inner[0]][:, None] == b.shape[inner[1]][None])
    x, y = inner[0][place_a], inner[1][place_b]
    telling = a.sketched[x] & b.sketched[y] & (a.min[x] < a.max[x])
    telling &= ~(filled(ledger.a, x) | filled(ledger.b, y))  # a mask's value hides the rest
    for one, other in ((a.nan, b.nan), (a.posinf, b.posinf), (a.neginf, b.neginf)):
        telling &= one[x] == other[y]  # sketches leave them out
    x, y = x[telling], y[telling]
    distance = np.linalg.norm(a.sketch[x] - b.sketch[y], axis=1)
    alike = (distance <= min(ledger.alike, most) * b.l2[y]) & ~((x == but[0]) & (y == but[1]))
    return frozenset(x[alike].tolist()), frozenset(y[alike].tolist())


def _made_before(ledger: Ledger, flow: Flow, inner: Ints, partner: Ints) -> frozenset[int]:
    """Return what was computed in a region and is what a call that has a counterpart made before, of the same to the bit.

    Something chosen twice (`levels[0]`) may be the wrong choice; something computed twice is only computed twice.
    """
    side, tensors, producer = flow.side, flow.side.tensors, flow.producer
    telling = tensors.measured & (tensors.min < tensors.max)
    inner = inner[telling[inner]]
    made = np.flatnonzero((producer >= 0) & (partner[producer] >= 0) & telling) if len(inner) else inner
    made = made[np.isin(tensors.hash[made], tensors.hash[inner])]
    first = {int(tensors.hash[x]): int(producer[x]) for x in made.tolist()[::-1]}
    found = set()
    for x in inner.tolist():
        here, before = int(producer[x]), first.get(int(tensors.hash[x]), len(partner))
        if before < here and side.calls.op[before] == side.calls.op[here]:
            given = [sorted(tensors.hash[flow.inputs(call)].tolist()) for call in (before, here)]
            if given[0] == given[1] and ledger.operator_class(side, here) not in IDLE:
                found.add(x)
    return frozenset(found)


def _results(flow: Flow, part: Region) -> Ints:
    """Return the tensors that the calls of a region made."""
    made = np.flatnonzero(np.isin(flow.producer, list(part.calls))) if part.calls else np.zeros(0, np.int64)
    return np.asarray(made[flow.same[made] == made])
