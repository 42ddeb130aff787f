"""Decides which pairs of calls correspond: which are asked for the same, of tensors of the same sizes."""

from __future__ import annotations

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.arguments import Difference, differences, numbers
from numscope.compare.align.pairing import MAP
from numscope.compare.align.slots import INPUT, OUTPUT, SlotPairs
from numscope.compare.load.side import Flags, Ints, Side

Differences = dict[int, list[Difference]]  # by pair
_SAME_NUMBER = 1e-6  # relative


def differing_arguments(a: Side, b: Side, alignment: Alignment) -> Differences:
    """Return the non-tensor arguments that differ, of pairs of calls of one operator."""
    words = a.book.words
    found: Differences = {}
    unlike = a.calls.arguments[alignment.target] != b.calls.arguments[alignment.reference]
    same_operator = a.calls.op[alignment.target] == b.calls.op[alignment.reference]
    for pair in np.flatnonzero(unlike & same_operator).tolist():
        call = alignment.target[pair]
        target, reference = (
            words[code] if code >= 0 else None
            for code in (a.calls.arguments[call], b.calls.arguments[alignment.reference[pair]])
        )
        differing = differences(target, reference, words[a.calls.op[call]])
        if differing:
            found[pair] = differing
    return found


def corresponding_pairs(
    a: Side, b: Side, alignment: Alignment, slots: SlotPairs, has_inner_calls: Flags, unrelated_sources: Flags
) -> Flags:
    """Return the pairs of one operator (or that a map file names), given tensors of the same sizes and sources.

    Tensors that one side alone is given, and backward calls, are not considered yet.
    """
    corresponds = np.ones(len(alignment.target), np.bool_)
    other_operator = a.calls.op[alignment.target] != b.calls.op[alignment.reference]
    corresponds[(alignment.why != MAP) & other_operator] = False
    if len(slots.a):
        other_size = a.tensors.elements[slots.a] != b.tensors.elements[slots.b]
        corresponds[slots.pair[(slots.role == INPUT) & (other_size | unrelated_sources)]] = False
        resized = slots.pair[(slots.role == OUTPUT) & other_size]
        corresponds[resized[~has_inner_calls[resized]]] = False
    return corresponds


def part_pairs_with_lone_inputs(
    a: Side, b: Side, alignment: Alignment, slots: SlotPairs, corresponds: Flags, differing: Differences
) -> None:
    """Clear `corresponds` where one side alone is given a tensor; one that stands for the other's number is an argument."""
    for side, rows, calls, other, other_calls in (
        (a, slots.alone_a, alignment.target, b, alignment.reference),
        (b, slots.alone_b, alignment.reference, a, alignment.target),
    ):
        if not len(rows):
            continue
        pair_of = np.full(len(side.calls), -1)
        pair_of[calls] = np.arange(len(calls))
        for row in rows.tolist():
            pair = int(pair_of[side.slots.call[row]])
            head, _, key = side.book.words[side.slots.slot[row]].partition(".")
            if pair < 0 or head not in ("input", "kwargs"):
                continue
            own = _single_number(side, int(side.slots.tensor[row]))
            theirs = _number_argument(other, int(other_calls[pair]), key) if own is not None else None
            if own is None or theirs is None:
                corresponds[pair] = False
            else:
                target, reference = (own, theirs) if side is a else (theirs, own)
                _compare_numbers(differing, pair, key, target, reference)


def _compare_numbers(differing: Differences, pair: int, name: str, target: float, reference: float) -> None:
    """Compare an argument that is a number on one side and a tensor on the other, where it had seemed not to be given."""
    others = [one for one in differing.pop(pair, ()) if one.name != name]
    if abs(target - reference) > _SAME_NUMBER * max(abs(target), abs(reference)):
        others.append(Difference(name, target, reference, telling=True))
    if others:
        differing[pair] = others


def part_backward_pairs(a: Side, alignment: Alignment, corresponds: Flags) -> None:
    """Clear `corresponds` for the backward calls of forward calls that do not correspond."""
    pair_of = np.full(len(a.calls), -1)
    pair_of[alignment.target] = np.arange(len(alignment.target))
    forward: Ints = pair_of[np.maximum(a.calls.forward[alignment.target], 0)]
    has_forward = (a.calls.forward[alignment.target] >= 0) & (forward >= 0)
    corresponds[has_forward & ~corresponds[np.maximum(forward, 0)]] = False


def _single_number(side: Side, tensor: int) -> float | None:
    """Return the number in a tensor of one element, None for any other tensor."""
    is_single = tensor >= 0 and side.tensors.elements[tensor] == 1
    return float(side.tensors.mean[tensor]) if is_single else None


def _number_argument(side: Side, call: int, key: str) -> float | None:
    """Return the plain number that a call is given under a position or name."""
    code = int(side.calls.arguments[call])
    return numbers(side.book.words[code]).get(key) if code >= 0 else None
