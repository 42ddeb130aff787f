"""Recognises runs whose inputs were not recorded (`slots="output"`, another tool's dump of outputs alone)."""

from __future__ import annotations

import numpy as np

from numscope.compare.load.side import Flags, Floats, Ints, Side, distinct
from numscope.core.operators import MULTIPLIES, Rounding, Trait, names_with

_NO_SIGN = ("optimizer", "data", "save")  # kinds of calls that may have no inputs in any run
# Their rounding depends on how many inputs there are, and on their sizes.
_MIXING = (*MULTIPLIES, Rounding.SUM, Rounding.NORMALISE, Rounding.CHANNELWISE, Rounding.FOURIER, Rounding.OTHER)


def records_inputs(side: Side) -> bool:
    """Tell whether a step recorded inputs: some call shows one, or no call has any."""
    present, index = distinct(side.slots.slot)
    heads = [side.book.words[code].partition(".")[0] for code in present.tolist()]
    is_input = np.array([head in ("input", "kwargs") for head in heads], dtype=np.bool_)[index]
    if bool((is_input & _ordinary(side)[side.slots.call]).any()):
        return True
    return all(is_source(side, row) for row in np.flatnonzero(_ordinary(side)).tolist())


def _ordinary(side: Side) -> Flags:
    return ~np.isin(side.calls.kind, [side.book.code(kind) for kind in _NO_SIGN])


def is_source(side: Side, row: int) -> bool:
    """Tell whether the output of a call depends on no earlier tensor: `arange`, `randn`, data."""
    if side.calls.kind[row] == side.book.code("data"):
        return True
    forward = side.calls.phase[row] != side.book.code("backward")
    return bool(forward and side.book.words[side.calls.op[row]] in names_with(Trait.SOURCE))


def loosened(limits: Floats, operator: Ints, roundoff: Floats) -> Floats:
    """Widen rounding limits for inputs of unknown sizes."""
    # Sums of narrower dtypes are accumulated in float32, where the number of terms matters little.
    factor = np.where(roundoff > 2.0**-20, 2.0, 4.0)
    widened = np.where(np.isin(operator, _MIXING), limits * factor, limits)
    # A parameter that was not recorded may itself be off by rounding, even where a call only moves it.
    return widened + np.where(operator == Rounding.CREATE, 0.0, 0.5 * factor**2 * roundoff)
