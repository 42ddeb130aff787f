"""Pairs calls that the walk through the trees left unpaired: by token, by value, or by the parameters they update."""

from __future__ import annotations

import numpy as np

from numscope.compare.align.pairing import NEAR, PATH, SEQUENCE, VALUE, Pairing, linked
from numscope.compare.align.tokens import Tokens, join, occurrences
from numscope.compare.align.trees import walk
from numscope.compare.load.side import Ints, Side, Words

_GAP = 48  # calls of a side: larger gaps are not searched by value, because all pairs would be compared
_ALIKE = 1e-5  # relative: two calls in the same place whose outputs are this near compute the same


def left(work: Pairing) -> tuple[Ints, Ints]:
    """Return the unpaired calls of both sides; no backward calls and no second executions."""
    a, b = work.a.calls, work.b.calls
    return (
        np.flatnonzero((work.partner_a < 0) & ~a.recompute & ~linked(work.a)),
        np.flatnonzero((work.partner_b < 0) & ~b.recompute & ~linked(work.b)),
    )


def pair_reordered(work: Pairing) -> None:
    """Pair unpaired calls of the same token and module path, the k-th with the k-th."""
    left_a, left_b = left(work)
    if not len(left_a) or not len(left_b):
        return
    calls_a, calls_b = work.a.calls, work.b.calls
    keys_a = work.tokens_a.exact[left_a] ^ (calls_a.module[left_a].astype(np.uint64) << np.uint64(40))
    keys_b = work.tokens_b.exact[left_b] ^ (calls_b.module[left_b].astype(np.uint64) << np.uint64(40))
    got_a, got_b = join(occurrences(keys_a), occurrences(keys_b))
    rows_a, rows_b = left_a[got_a], left_b[got_b]
    is_module = calls_a.kind[rows_a] == work.a.book.code("module")
    # An operator that moved within its module is the same only if it still computes the same bits.
    same = is_module | (
        (work.tokens_a.strong[rows_a] == work.tokens_b.strong[rows_b]) & (work.tokens_a.bits[rows_a] > 0)
    )
    work.pair(rows_a[same], rows_b[same], SEQUENCE)
    work.why[rows_a[same & is_module]] = PATH
    for x, y in zip(rows_a[same & is_module].tolist(), rows_b[same & is_module].tolist()):
        walk(work, (work.children_a.of(x), work.children_b.of(y)))


def pair_crossed(work: Pairing) -> None:
    """Pair anew the calls that were paired in order, though each is given and makes what another call of the other side does.

    A loop that runs from the last expert to the first makes the same masks, in another order.
    """
    doubtful_a, doubtful_b = (_doubtful(work, *one) for one in _both_sides(work))
    if not len(doubtful_a) or not len(doubtful_b):
        return
    inside_a, inside_b = work.a.calls.parent[doubtful_a], work.b.calls.parent[doubtful_b]
    inside_a = np.where(inside_a >= 0, work.partner_a[inside_a], -1)  # the reference's call that a call belongs into
    keys_a, keys_b = (
        occurrences(tokens.strong[rows] ^ tokens.first[rows] ^ ((inside + 1).astype(np.uint64) << np.uint64(40)))
        for tokens, rows, inside in (
            (work.tokens_a, doubtful_a, inside_a),
            (work.tokens_b, doubtful_b, inside_b),
        )
    )
    got_a, got_b = join(keys_a, keys_b)
    rows_a, rows_b = doubtful_a[got_a], doubtful_b[got_b]
    for x, y in zip(rows_a.tolist(), rows_b.tolist()):
        work.unpair(x, y)
    work.pair(rows_a, rows_b, SEQUENCE)


def _both_sides(work: Pairing) -> tuple[tuple[Side, Tokens, Ints, Words], tuple[Side, Tokens, Ints, Words]]:
    """Return of each side its calls' tokens, partners, and the other side's tokens."""
    return (
        (work.a, work.tokens_a, work.partner_a, work.tokens_b.strong),
        (work.b, work.tokens_b, work.partner_b, work.tokens_a.strong),
    )


def _doubtful(work: Pairing, side: Side, tokens: Tokens, partner: Ints, strong_of_others: Words) -> Ints:
    """Return the calls without inner calls that have no partner, or one that asks for or makes something else."""
    calls = side.calls
    api = np.isin(calls.kind, [side.book.code("api"), side.book.code("aten")])
    telling = (tokens.bits > 0) & (tokens.first > 0)
    leaf = (calls.children == 0) & ~calls.recompute & ~linked(side) & api & telling
    unlike = (partner < 0) | (strong_of_others[partner] != tokens.strong)
    return np.flatnonzero(leaf & unlike)


def pair_by_value(work: Pairing) -> None:
    """Pair calls of equal output bits, those of one kind first, then calls of a gap with nearly equal outputs."""
    for kinds in (True, False):
        left_a, left_b = left(work)
        told_a, told_b = left_a[work.tokens_a.bits[left_a] > 0], left_b[work.tokens_b.bits[left_b] > 0]
        got_a, got_b = join(
            occurrences(_content(work.a, work.tokens_a, told_a, kinds)),
            occurrences(_content(work.b, work.tokens_b, told_b, kinds)),
        )
        work.pair(told_a[got_a], told_b[got_b], VALUE)
    for gap_a, gap_b in work.gaps:
        gap_a, gap_b = gap_a[work.partner_a[gap_a] < 0], gap_b[work.partner_b[gap_b] < 0]
        if 0 < len(gap_a) <= _GAP and 0 < len(gap_b) <= _GAP:
            _pair_gap(work, gap_a, gap_b)


def _content(side: Side, tokens: Tokens, rows: Ints, kinds: bool) -> Words:
    """Return a number for the output bits and the phase of each call, and for its kind where `kinds` is true."""
    apart = side.calls.phase[rows] + (side.calls.kind[rows] << 20) * kinds
    return np.asarray(tokens.bits[rows] + apart.astype(np.uint64))


def _pair_gap(work: Pairing, gap_a: Ints, gap_b: Ints) -> None:
    out_a, out_b = _outputs(work.a, gap_a), _outputs(work.b, gap_b)
    near = []
    for x, t in zip(gap_a.tolist(), out_a):
        for y, r in zip(gap_b.tolist(), out_b):
            if t < 0 or r < 0 or work.a.calls.phase[x] != work.b.calls.phase[y]:
                continue
            distance = _distance(work.a, t, work.b, r)
            if distance < NEAR:
                near.append((distance, x, y))
    for _, x, y in sorted(near):
        if work.partner_a[x] < 0 and work.partner_b[y] < 0:
            work.pair(np.array([x]), np.array([y]), VALUE)
    left_a, left_b = gap_a[work.partner_a[gap_a] < 0], gap_b[work.partner_b[gap_b] < 0]
    if len(left_a) == 1 and len(left_b) == 1 and _replaced(work, int(left_a[0]), int(left_b[0])):
        same = _outputs_alike(work, int(left_a[0]), int(left_b[0]))
        work.pair(left_a, left_b, VALUE if same else SEQUENCE)


def pair_optimizers(work: Pairing) -> None:
    """Pair optimizer steps that update the same parameters, whatever their class and position."""
    kind = work.a.book.code("optimizer")
    left_a, left_b = left(work)
    left_b = left_b[work.b.calls.kind[left_b] == kind]
    for x in left_a[work.a.calls.kind[left_a] == kind].tolist():
        slots = _slots(work.a, x)
        shared = np.array([len(np.intersect1d(slots, _slots(work.b, y))) for y in left_b.tolist()])
        if shared.any():
            y = left_b[shared.argmax()]
            work.pair(np.array([x]), np.array([y]), SEQUENCE)
            left_b = left_b[left_b != y]


def _slots(side: Side, row: int) -> Ints:
    return side.slots.slot[side.slots.start[row] : side.slots.start[row + 1]]


def _outputs_alike(work: Pairing, x: int, y: int) -> bool:
    """Tell whether the outputs of two calls have the same values; single numbers count, too."""
    t, r = int(_outputs(work.a, np.array([x]))[0]), int(_outputs(work.b, np.array([y]))[0])
    a, b = work.a.tensors, work.b.tensors
    if not (a.sketched[t] and b.sketched[r]):
        return False
    return float(np.linalg.norm(a.sketch[t] - b.sketch[r])) <= _ALIKE * float(b.l2[r])


def _replaced(work: Pairing, x: int, y: int) -> bool:
    """Tell whether one of two unpaired calls in the same place replaces the other: same kind, phase and output shape."""
    t, r = int(_outputs(work.a, np.array([x]))[0]), int(_outputs(work.b, np.array([y]))[0])
    same = t >= 0 and r >= 0 and work.a.tensors.shape[t] == work.b.tensors.shape[r]
    if same and _passes_on(work.a, x, t) != _passes_on(work.b, y, r):
        return False  # a cast or copy that changes nothing does not replace a call that computes
    return same and work.a.calls.phase[x] == work.b.calls.phase[y] and work.a.calls.kind[x] == work.b.calls.kind[y]


def _passes_on(side: Side, row: int, output: int) -> bool:
    """Tell whether a call's output has the bits of one of its inputs."""
    tensors = side.slots.tensor[side.slots.start[row] : side.slots.start[row + 1]]
    others = tensors[(tensors >= 0) & (_slots(side, row) != side.book.code("output.0"))]
    return bool(np.any(side.tensors.hash[others] == side.tensors.hash[output]))


def _outputs(side: Side, rows: Ints) -> Ints:
    """Return the tensor in `output.0` (or `output`) of each row, -1 where there is none."""
    wanted = [side.book.code("output.0"), side.book.code("output")]
    tensors = np.full(len(rows), -1)
    for index, row in enumerate(rows.tolist()):
        here = slice(side.slots.start[row], side.slots.start[row + 1])
        hit = np.flatnonzero(np.isin(side.slots.slot[here], wanted))
        if len(hit):
            tensors[index] = side.slots.tensor[here][hit[0]]
    return tensors


def _distance(a: Side, t: int, b: Side, r: int) -> float:
    if a.tensors.elements[t] != b.tensors.elements[r] or a.tensors.elements[t] < 2:
        return np.inf
    if not (a.tensors.sketched[t] and b.tensors.sketched[r]) or not b.tensors.l2[r] > 0:
        return np.inf
    return float(np.linalg.norm(a.tensors.sketch[t] - b.tensors.sketch[r]) / b.tensors.l2[r])
