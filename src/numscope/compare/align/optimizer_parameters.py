"""Pairs the parameters of two optimizer steps where the two models name them differently.

A ported model has the same parameters under other names; an optimizer of copies (float32 masters of a bf16 model) has no
names at all. Parameters whose names only one side has are paired through paired modules that hold them, or by value.
"""

from __future__ import annotations

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.load.side import Ints, Side

_NEAR = 0.02  # relative: parameters this near are the same one, in another precision or some steps later
_TELLING = 16  # elements: the values of smaller parameters tell too little to pair by
_APART = 4.0  # the second nearest parameter must be this many times as far as the nearest
Positions = dict[str, dict[str, int]]  # by label, then by head: parameters, parameters_grad, output


def pair_labels(
    a: Side,
    b: Side,
    alignment: Alignment,
    pair_a: Ints,
    slot_a: Ints,
    pair_b: Ints,
    slot_b: Ints,
    key_a: Ints,
    key_b: Ints,
) -> None:
    """Write the same key into `key_a` and `key_b` for the slots of parameters that belong together."""
    kind = a.book.code("optimizer")
    chosen_a = np.flatnonzero(a.calls.kind[a.slots.call[slot_a]] == kind)
    chosen_b = np.flatnonzero(b.calls.kind[b.slots.call[slot_b]] == kind)
    for pair in np.unique(pair_a[chosen_a]).tolist():
        mine = _labels(a, slot_a, chosen_a[pair_a[chosen_a] == pair])
        theirs = _labels(b, slot_b, chosen_b[pair_b[chosen_b] == pair])
        alone, others = (
            {x: y for x, y in one.items() if x not in two} for one, two in ((mine, theirs), (theirs, mine))
        )
        if not alone or not others:
            continue
        held = _in_order(a, slot_a, alone, b, slot_b, others)
        held = held or _by_module(a, slot_a, alone, b, slot_b, others, _paths(a, b, alignment))
        alone_now = {label: positions for label, positions in alone.items() if label not in held}
        others_now = {label: positions for label, positions in others.items() if label not in held.values()}
        for label, other in {**held, **_by_value(a, slot_a, alone_now, b, slot_b, others_now)}.items():
            for head in alone[label].keys() & others[other].keys():
                key_b[others[other][head]] = key_a[alone[label][head]]


def _labels(side: Side, rows: Ints, positions: Ints) -> Positions:
    labels: Positions = {}
    for position in positions.tolist():
        head, _, label = side.book.words[side.slots.slot[rows[position]]].partition(".")
        labels.setdefault(label, {})[head] = position
    return labels


def _paths(a: Side, b: Side, alignment: Alignment) -> dict[str, str]:
    """Return the reference's module path for each module path of the target that is paired with one."""
    rows = np.flatnonzero(a.calls.kind[alignment.target] == a.book.code("module"))
    mine, theirs = a.calls.module[alignment.target[rows]], b.calls.module[alignment.reference[rows]]
    return {a.book.words[x]: b.book.words[y] for x, y in zip(mine.tolist(), theirs.tolist()) if min(x, y) >= 0}


def _in_order(a: Side, slot_a: Ints, mine: Positions, b: Side, slot_b: Ints, theirs: Positions) -> dict[str, str]:
    """Pair the labels of both sides in order, if the shapes and values of all pairs agree."""
    rows = [(_parameter(a, slot_a, x), _parameter(b, slot_b, y)) for x, y in zip(mine.values(), theirs.values())]
    if len(mine) != len(theirs) or any(min(t, r) < 0 or not _is_near(a, t, b, r) for t, r in rows):
        return {}
    return dict(zip(mine, theirs))


def _is_near(a: Side, t: int, b: Side, r: int) -> bool:
    """Tell whether two parameters have the same shape, and near values unless they are few or nearly zero."""
    if a.tensors.shape[t] != b.tensors.shape[r] or not (a.tensors.sketched[t] and b.tensors.sketched[r]):
        return False
    small = a.tensors.elements[t] < _TELLING or not a.tensors.l2[t] > 0.01 * a.tensors.elements[t] ** 0.5
    return small or bool(np.linalg.norm(a.tensors.sketch[t] - b.tensors.sketch[r]) <= _NEAR * a.tensors.l2[t])


def _by_module(
    a: Side, slot_a: Ints, mine: Positions, b: Side, slot_b: Ints, theirs: Positions, paths: dict[str, str]
) -> dict[str, str]:
    """Pair the labels of parameters that paired modules hold under the same name and in the same layout."""
    pairs = {}
    for label in mine:
        path, _, name = label.rpartition(".")
        other = f"{paths[path]}.{name}".lstrip(".") if path in paths else ""
        t, r = _parameter(a, slot_a, mine[label]), _parameter(b, slot_b, theirs.get(other, {}))
        if min(t, r) >= 0 and _is_near(a, t, b, r):
            pairs[label] = other
    return pairs


def _by_value(a: Side, slot_a: Ints, mine: Positions, b: Side, slot_b: Ints, theirs: Positions) -> dict[str, str]:
    """Pair each label with the one whose parameter is by far the nearest."""
    pairs: dict[str, str] = {}
    left = {label: r for label, positions in theirs.items() if (r := _parameter(b, slot_b, positions)) >= 0}
    for label, positions in mine.items():
        t = _parameter(a, slot_a, positions)
        names = [
            x for x, r in left.items() if t >= 0 and a.tensors.shape[t] == b.tensors.shape[r] and b.tensors.sketched[r]
        ]
        if not names or not a.tensors.sketched[t]:
            continue
        rows = np.array([left[name] for name in names])
        distance = np.linalg.norm(b.tensors.sketch[rows] - a.tensors.sketch[t], axis=1)
        best, *next_best = np.sort(distance)[:2].tolist()
        clear = not next_best or next_best[0] > _APART * best
        if best <= _NEAR * a.tensors.l2[t] and clear:
            name = names[int(distance.argmin())]
            pairs[label] = name
            del left[name]
    return pairs


def _parameter(side: Side, rows: Ints, positions: dict[str, int]) -> int:
    """Return the tensor of a parameter before the step, or -1."""
    position = positions.get("parameters", -1)
    return int(side.slots.tensor[rows[position]]) if position >= 0 else -1


def has_parameter(side: Side, label: str, mine: Side, tensor: int) -> bool:
    """Tell whether a side has a parameter of the other side in this step, by name or by value."""
    path, _, name = label.rpartition(".")
    slot, module = (side.book.numbers.get(word, -1) for word in (f"parameters.{name}", path))
    calls = side.slots.call[side.slots.slot == slot] if slot >= 0 else np.zeros(0, np.int64)
    if bool((side.calls.module[calls] == module).any()):
        return True
    if not mine.tensors.min[tensor] < mine.tensors.max[tensor]:
        return False  # a constant, such as a norm's ones, is in every model
    rows = np.flatnonzero((side.tensors.shape == mine.tensors.shape[tensor]) & side.tensors.sketched)
    distance = np.linalg.norm(side.tensors.sketch[rows] - mine.tensors.sketch[tensor], axis=1)
    return bool((distance <= _NEAR * mine.tensors.l2[tensor]).any())
