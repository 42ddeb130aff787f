"""Runs that recorded no inputs (`slots="output"`, another tool's dump of outputs alone), as their tables show it."""

from __future__ import annotations

import numpy as np

from numscope.compare.load.side import Flags, Floats, Ints, Side, distinct
from numscope.core.operators import Rounding, Trait, names_with

_OWN = ("optimizer", "data", "save")  # kinds of calls whose slots say nothing about what the others would show
_MIXING = (
    Rounding.PRODUCT,
    Rounding.SUM,
    Rounding.NORMALISE,
    Rounding.OTHER,
)  # round by how many numbers, of which size, they are given


def records_inputs(side: Side) -> bool:
    """Return whether any call of a step shows what it was given, or none would have anything to show."""
    present, place = distinct(side.slots.slot)
    heads = [side.book.words[code].partition(".")[0] for code in present.tolist()]
    given = np.array([head in ("input", "kwargs") for head in heads], dtype=np.bool_)[place]
    if bool((given & _ordinary(side)[side.slots.call]).any()):
        return True
    return all(is_source(side, row) for row in np.flatnonzero(_ordinary(side)).tolist())


def _ordinary(side: Side) -> Flags:
    return ~np.isin(side.calls.kind, [side.book.code(kind) for kind in _OWN])


def is_source(side: Side, row: int) -> bool:
    """Return whether a call makes its output of nothing that came before it: `arange`, `randn`, data."""
    if side.calls.kind[row] == side.book.code("data"):
        return True
    forward = side.calls.phase[row] != side.book.code("backward")
    return bool(forward and side.book.words[side.calls.op[row]] in names_with(Trait.SOURCE))


def loosened(limits: Floats, operator: Ints, roundoff: Floats) -> Floats:
    """Return limits as wide as they would be for inputs of common sizes, which are not known."""
    # Below float32 sums are accumulated in float32: how many terms there are matters little.
    factor = np.where(roundoff > 2.0**-20, 2.0, 4.0)
    wide = np.where(np.isin(operator, _MIXING), limits * factor, limits)
    # A parameter that was not recorded may be off by rounding, which shows even where it is only moved.
    return wide + np.where(operator == Rounding.CREATE, 0.0, 0.5 * factor**2 * roundoff)
