"""Says of a tensor with wrong values whose values it has: another layer's, another expert's, an earlier checkpoint's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from numscope.weights.judge import content
from numscope.weights.judge.case import Case
from numscope.weights.matching.lines import Book
from numscope.weights.matching.names import read
from numscope.weights.matching.values import nearest
from numscope.weights.measure import directly
from numscope.weights.tensor import Tensor

_OPEN = ("values", "slice", "scale", "shape")  # faults that a better explanation may take the place of


def judge(cases: Sequence[Case], b: Sequence[Tensor], earlier: Sequence[Sequence[Tensor]], book: Book) -> None:
    """Name what the wrong tensors hold instead."""
    wrong = [case for case in cases if case.is_single and case.verdict == "diverged" and case.fault in _OPEN]
    by_shape: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
    for tensor in b:
        by_shape[tensor.shape].append(tensor)
    for case in wrong:
        if case.fault in ("values", "scale"):
            others = [tensor for tensor in by_shape[case.a[0].shape] if tensor is not case.b[0]]
            case.holder = _vector_holder(case.a[0], others) if case.a[0].is_vector else nearest(book, case.a[0], others)
    by_b = {id(case.b[0]): case for case in cases if case.is_single}
    for case in wrong:
        if case.holder is not None:
            _holds_another(case, by_b.get(id(case.holder)))
        elif not _is_stale(case, earlier):
            _unrelated(case, cases)


def _vector_holder(tensor: Tensor, others: Sequence[Tensor]) -> Tensor | None:
    """Return a vector with the same elements; vectors of one number are everywhere, and tell nothing."""
    if tensor.read is None:
        return None
    own = tensor.elements()
    if len(np.unique(own.astype(np.float64))) < 2:
        return None
    for other in others:
        if other.read is not None and np.array_equal(own, other.elements()):
            return other
    return None


def _holds_another(case: Case, partner: Case | None) -> None:
    holder = case.holder
    assert holder is not None
    here, there = read(case.b[0].name), read(holder.name)
    is_mutual = partner is not None and partner.holder is case.b[0]
    repair = f"take it from {partner.a[0].name} of A" if is_mutual and partner is not None else None
    if here.role == there.role and len(here.numbers) == 2 and here.numbers[:1] == there.numbers[:1]:
        case.blame("expert", f"it has the values of another expert, {holder.name} of B", repair)
    elif is_mutual:
        case.blame("swapped", f"swapped with {holder.name}: each has the other's values", repair)
    elif here.role == there.role and here.numbers[1:] == there.numbers[1:]:
        step = there.numbers[0] - here.numbers[0] if here.numbers and there.numbers else 0
        case.blame("layer", f"it has the values of another layer, {holder.name} of B ({step:+d})", repair)
    else:
        case.blame("swapped", f"it has the values of {holder.name} of B", repair)


def _is_stale(case: Case, earlier: Sequence[Sequence[Tensor]]) -> bool:
    a = case.a[0]
    for number, checkpoint in enumerate(earlier):
        old = next((tensor for tensor in checkpoint if tensor.name == a.name and tensor.shape == a.shape), None)
        if old is not None and a.read is not None and old.read is not None and not directly(a, old).differing:
            which = "the earlier checkpoint" if len(earlier) == 1 else f"earlier checkpoint {number + 1}"
            case.blame("stale", f"it is that of {which}: it was not updated", "load it again")
            return True
    return False


def _unrelated(case: Case, cases: Sequence[Case]) -> None:
    """Name a tensor that has nothing in common with the reference's: it is still what it was initialised to."""
    d = case.difference
    if case.fault != "values" or d is None or not content.is_unrelated(d):
        return
    like = content.initialisation(case.a[0], d)
    role = read(case.b[0].name).role
    peers = [one for one in cases if one is not case and one.b and read(one.b[0].name).role == role]
    right = sum(one.verdict != "diverged" for one in peers)
    beside = f"; {right} of its {len(peers)} peers agree" if peers else ""
    if like is not None:
        case.blame("initialisation", f"never loaded: {like}, nothing in common with B's{beside}", "load it")
    else:
        case.reason = f"it has nothing in common with B's{beside}"
