"""Recognises runs that are given parts of other sizes of one batch: micro batches here, a share for each rank there.

The calls of such a step have no counterpart of the same size, so that only the gradients that reach the optimizer are
compared, when all parts have been added up (rules/micro_batches.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.slots import SlotPairs
from numscope.compare.judge.paths.dataflow import Flow
from numscope.compare.load.side import Side


def batch_shapes(a: Side, b: Side, alignment: Alignment, slots: SlotPairs) -> str:
    """Return the shapes of the data of both sides, "[4, 12] against [8, 12]", where they are parts of other sizes of a batch.

    That is: all but their first dimension is the same, or one is a multiple of the other in the second.
    """
    data = a.calls.kind[alignment.target[slots.pair]] == a.book.code("data")
    for row in np.flatnonzero(data & (a.tensors.elements[slots.a] != b.tensors.elements[slots.b])).tolist():
        target, reference = _shape(a, int(slots.a[row])), _shape(b, int(slots.b[row]))
        unlike = [axis for axis, (one, other) in enumerate(zip(target, reference)) if one != other]
        if len(target) != len(reference) or len(unlike) != 1:
            continue
        (axis,) = unlike
        small, large = sorted((target[axis], reference[axis]))
        if axis == 0 or (axis == 1 and small and large % small == 0):
            return f"{target} against {reference}"
    return ""


def _shape(side: Side, tensor: int) -> list[int]:
    text = side.book.words[side.tensors.shape[tensor]]
    return [int(part) for part in text.split(", ")] if text else []


def pairs_that_load_data(flow: Flow, alignment: Alignment, pairs: Iterable[int]) -> list[int]:
    """Return those of the pairs that choose and prepare data: nothing that a model made leads to them.

    With other parts of a batch they choose other samples.
    """
    calls, book = flow.side.calls, flow.side.book
    outside = (calls.parent < 0) & (calls.kind == book.code("api")) & (calls.phase == book.code("forward"))
    loading: set[int] = set()
    for call in np.flatnonzero(outside).tolist():
        producers = {int(flow.producer[tensor]) for tensor in flow.inputs(call)}
        if producers <= loading | {-1}:
            loading.add(call)
    return [pair for pair in pairs if int(alignment.target[pair]) in loading]
