"""Loss scaling: gradients that a run computes times a factor, which it takes off again before it uses them.

`scaler.scale(loss).backward()` makes every gradient of float16 large enough to be held; `scaler.unscale_` divides them.
Against a run without that, or with another factor, gradients are compared as they would be without it. A factor that
nothing takes off again is none: a loss that is divided by the number of its parts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from numscope.compare.load.side import Flags, Ints, Side

_SAME = 1e-3  # relative: a gradient and what it was scaled from; float16 rounds


def without_scale(a: Side, b: Side) -> tuple[Side, Side, tuple[float, float]]:
    """Return the two sides with their gradients as they are without loss scaling, and the factors that were taken off."""
    found = _loss_scale(a), _loss_scale(b)
    factors = found[0][0], found[1][0]
    if factors[0] == factors[1]:
        return a, b, (1.0, 1.0)
    return _unscaled(a, *found[0]), _unscaled(b, *found[1]), factors


def _loss_scale(side: Side) -> tuple[float, int]:
    """Return the factor of a side's loss, 1 for none, and the backward call that applied it."""
    backward = side.calls.phase == side.book.code("backward")
    one = side.slots.tensor >= 0
    one[one] &= side.tensors.elements[side.slots.tensor[one]] == 1
    rows = np.flatnonzero(one & backward[side.slots.call])
    made = [row for row in rows.tolist() if side.book.words[side.slots.slot[row]].startswith("output")]
    for row in made:
        call, factor = int(side.slots.call[row]), float(side.tensors.mean[side.slots.tensor[row]])
        given = rows[(side.slots.call[rows] == call) & (side.slots.slot[rows] == side.book.code("input.0"))]
        begins = len(given) == 1 and side.tensors.mean[side.slots.tensor[given[0]]] == 1.0
        if begins and factor > 0 and factor != 1.0 and _is_taken_off(side, factor, call, backward):
            return factor, call
    return 1.0, -1


def _is_taken_off(side: Side, factor: float, after: int, backward: Flags) -> bool:
    """Return whether a later call divides what it is given by the factor."""
    words, tensors = side.book.words, side.tensors
    calls = np.flatnonzero(~backward & (side.calls.kind != side.book.code("optimizer")) & (side.calls.children == 0))
    for call in calls[calls > after].tolist():
        here = range(int(side.slots.start[call]), int(side.slots.start[call + 1]))
        heads = [(words[side.slots.slot[row]].partition(".")[0], int(side.slots.tensor[row])) for row in here]
        given, made = ([t for head, t in heads if head == kind and t >= 0] for kind in ("input", "output"))
        for t, r in zip(given, made):
            same = tensors.elements[t] == tensors.elements[r] > 1 and tensors.sketched[t] and tensors.sketched[r]
            if same and tensors.l2[t] > 0:
                apart = float(np.linalg.norm(tensors.sketch[t] - factor * tensors.sketch[r]))
                if apart <= _SAME * tensors.l2[t]:
                    return True
    return False


def _unscaled(side: Side, factor: float, root: int) -> Side:
    """Return a side with the gradients of its backward divided by the factor; their data, if kept, is not looked at."""
    if root < 0:
        return side
    tensors = side.tensors
    scaled = _gradients(side, root)
    divide = np.where(scaled, factor, 1.0)
    return replace(
        side,
        tensors=replace(
            tensors,
            min=tensors.min / divide,
            max=tensors.max / divide,
            mean=tensors.mean / divide,
            l2=tensors.l2 / divide,
            sketch=tensors.sketch / divide[:, None],
            hash=tensors.hash ^ np.where(scaled, np.uint64(0x9E3779B97F4A7C15), np.uint64(0)),
            kept=tensors.kept & ~scaled,
            sampled=tensors.sampled & ~scaled,
            scale=divide,
        ),
    )


def _gradients(side: Side, root: int) -> Flags:
    """Return which tensors are gradients of the scaled loss: what backward calls show from the one on that scaled it."""
    slots = side.slots
    in_backward = (side.calls.phase == side.book.code("backward"))[slots.call] & (slots.tensor >= 0)
    begins = (slots.call == root) & (slots.slot == side.book.code("input.0"))
    shown = np.zeros(len(side.tensors.hash), np.bool_)
    shown[slots.tensor[in_backward & (slots.call >= root) & ~begins]] = True
    before: Ints = slots.tensor[(slots.tensor >= 0) & ((slots.call < root) | begins)]
    shown[before] = False
    return shown
