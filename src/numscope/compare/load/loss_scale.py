"""Loss scaling: removes the factor of a gradient scaler from the gradients of a run before they are compared.

`scaler.scale(loss).backward()` multiplies every gradient so that float16 can represent it, and `scaler.unscale_` divides
it again. A run without a scaler, or with another factor, has other gradients in between. A factor that no later call
divides by is no loss scale: a loss is also divided by the number of micro-batches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from numscope.compare.load.side import Flags, Ints, Side

_SAME = 1e-3  # relative, between a gradient divided by the scaler and one divided by us: float16 rounds


class _LossScale(NamedTuple):
    """The factor of a side's loss, and the backward call that applied it."""

    factor: float = 1.0
    call: int = -1


def without_scale(a: Side, b: Side) -> tuple[Side, Side, tuple[float, float]]:
    """Return the two sides with their gradients divided by their loss scales, and the two scales."""
    scale_a, scale_b = _loss_scale(a), _loss_scale(b)
    if scale_a.factor == scale_b.factor:
        return a, b, (1.0, 1.0)
    return _unscaled(a, scale_a), _unscaled(b, scale_b), (scale_a.factor, scale_b.factor)


def _loss_scale(side: Side) -> _LossScale:
    """Find the backward call that multiplies a gradient of 1 by a factor that a later call divides by."""
    backward = side.calls.phase == side.book.code("backward")
    scalar = side.slots.tensor >= 0
    scalar[scalar] &= side.tensors.elements[side.slots.tensor[scalar]] == 1
    rows = np.flatnonzero(scalar & backward[side.slots.call])
    outputs = [row for row in rows.tolist() if side.book.words[side.slots.slot[row]].startswith("output")]
    for row in outputs:
        call, factor = int(side.slots.call[row]), float(side.tensors.mean[side.slots.tensor[row]])
        inputs = rows[(side.slots.call[rows] == call) & (side.slots.slot[rows] == side.book.code("input.0"))]
        begins = len(inputs) == 1 and side.tensors.mean[side.slots.tensor[inputs[0]]] == 1.0
        if begins and factor > 0 and factor != 1.0 and _is_taken_off(side, factor, call, backward):
            return _LossScale(factor, call)
    return _LossScale()


def _is_taken_off(side: Side, factor: float, after: int, backward: Flags) -> bool:
    """Tell whether a call after `after` divides its inputs by the factor."""
    words, tensors = side.book.words, side.tensors
    calls = np.flatnonzero(~backward & (side.calls.kind != side.book.code("optimizer")) & (side.calls.children == 0))
    for call in calls[calls > after].tolist():
        rows = range(int(side.slots.start[call]), int(side.slots.start[call + 1]))
        heads = [(words[side.slots.slot[row]].partition(".")[0], int(side.slots.tensor[row])) for row in rows]
        inputs, outputs = ([t for head, t in heads if head == kind and t >= 0] for kind in ("input", "output"))
        for t, r in zip(inputs, outputs):
            same = tensors.elements[t] == tensors.elements[r] > 1 and tensors.sketched[t] and tensors.sketched[r]
            if same and tensors.l2[t] > 0:
                distance = float(np.linalg.norm(tensors.sketch[t] - factor * tensors.sketch[r]))
                if distance <= _SAME * tensors.l2[t]:
                    return True
    return False


def _unscaled(side: Side, scale: _LossScale) -> Side:
    """Return a side with its scaled gradients divided by the factor; data that was kept of them counts as not kept."""
    if scale.call < 0:
        return side
    tensors = side.tensors
    scaled = _gradients(side, scale.call)
    divide = np.where(scaled, scale.factor, 1.0)
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
    """Return which tensors first appear in backward calls from `root` on, the call that scaled the loss."""
    slots = side.slots
    in_backward = (side.calls.phase == side.book.code("backward"))[slots.call] & (slots.tensor >= 0)
    begins = (slots.call == root) & (slots.slot == side.book.code("input.0"))
    shown = np.zeros(len(side.tensors.hash), np.bool_)
    shown[slots.tensor[in_backward & (slots.call >= root) & ~begins]] = True
    before: Ints = slots.tensor[(slots.tensor >= 0) & ((slots.call < root) | begins)]
    shown[before] = False
    return shown
