"""How far off a tensor may be that is compared by its statistics alone.

An error of random sign hardly shows in a norm or a mean: of n elements, by 1/√n of its size. What the tensors with sketches
show up to that call, in the same two runs, is taken in its place for what comes into a call; what comes out is held
against rounding by what its statistics show.
"""

from __future__ import annotations

from bisect import insort

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.slots import SlotPairs
from numscope.compare.load.side import Floats, Side
from numscope.compare.measure.measures import Measures

# Of the errors in the clean runs of bench.layouts, the largest was 9 times the median so far, but 32 times in one pair
# (sequence parallel over 4 ranks against one process); gradients that are nothing but rounding apart, off by their own size.
_TIMES, _NOTHING_BUT_ROUNDING = 16.0, 0.1


def unseen_errors(a: Side, b: Side, alignment: Alignment, slots: SlotPairs, measures: Measures) -> Floats:
    """Return, for each pair of tensors, what its statistics may not show; 0 where both have a sketch."""
    sketched = a.tensors.sketched[measures.a] & b.tensors.sketched[measures.b]
    unseen = np.zeros(len(measures.a))
    errors: list[float] = []
    done = np.zeros(len(measures.a), np.bool_)
    is_inner = (a.calls.children[alignment.target] == 0)[slots.pair]  # the results of others are those of calls to come
    for slot in np.argsort(alignment.target[slots.pair], kind="stable").tolist():
        row = int(measures.row_of[slot])
        if done[row] or not is_inner[slot]:
            continue
        done[row] = True
        error = float(measures.error[row])
        if not sketched[row] and not measures.bitwise[row]:
            unseen[row] = _TIMES * errors[len(errors) // 2] if errors else 0.0
        elif 0 < error < _NOTHING_BUT_ROUNDING:
            insort(errors, error)
    return unseen
