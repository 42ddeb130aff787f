"""Discrete choices: routing, argmax, sorts, masks from comparisons. What an error flips is not in proportion to it.

An operator that returns the chosen values beside their places (top-k, sort, a maximum along a dimension) is judged by the
values: |max x - max y| ≤ ‖x - y‖, whatever places they are from, so that values which agree prove that what was chosen
elsewhere was as good, a tie or within the margin that came in. Of an operator that returns places alone, as many may be
flipped as lie within the margin. What is indexed by a flipped place is another row: explained for these rows only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from numscope.compare.load.side import Flags, Floats

# Of numbers whose density is at most one per root mean square, an error e moves 2e·n past a threshold at most. The
# heaviest measured is 36 (the kink of a bounded activation, rounding.KINK² of them).
FLIPS_PER_ERROR = 36.0
_FURTHER = 2.0  # flips, beyond what is expected, that happen by chance
_DEVIATIONS = 4.0  # of a count: √ of what is expected
_VALUES = 4.0  # gain of the chosen values: kernels that search otherwise round alike
_SKETCHED = 2.0  # a squared distance is estimated to within this factor


class Flipped(NamedTuple):
    """How many elements of a tensor of integers or bools differ: at least and at most, by the distance of the two sides."""

    least: Floats
    most: Floats


def flipped(distance: Floats, elements: Floats, spread: Floats, estimated: Flags) -> Flipped:
    """Return how many integers differ: each by 1 at least and by the spread of the values at most.

    An unknown distance says nothing: none at least, all at most.
    """
    known = np.isfinite(distance)
    square = np.where(known, distance, 0.0) ** 2
    blur = np.where(estimated, _SKETCHED, 1.0)
    least = np.where(known, np.floor(square / blur / np.maximum(spread, 1.0) ** 2), 0.0)
    most = np.where(known, np.minimum(np.ceil(square * blur), elements), elements)
    return Flipped(least, most)


@dataclass(frozen=True)
class Choice:
    """A choice of a pair of calls that fell otherwise by rounding, for the answer's sentence."""

    call: str
    flipped: int  # at most
    elements: int
    margin: float  # the error that came in, 0 for a tie

    def __str__(self) -> str:
        why = f"what it chose from is within {self.margin:.2g}" if self.margin else "ties"
        return f"{self.call}: {self.flipped} of {self.elements} at most, {why}"

    def to_dict(self) -> dict[str, object]:
        """Return the choice as JSON."""
        return {"call": self.call, "flipped": self.flipped, "elements": self.elements, "margin": self.margin}


def explained_flips(came_in: Floats, given: Floats, ranks: Flags) -> Floats:
    """Return how many of the elements given to a comparison an error may flip.

    Where places among all elements are returned, n elements are n times as near to each other.
    """
    density = FLIPS_PER_ERROR * np.where(ranks, given, 1.0)
    expected = np.minimum(density * np.nan_to_num(came_in, posinf=1.0), 1.0) * given
    return np.asarray(np.where(came_in > 0, expected + _DEVIATIONS * np.sqrt(expected) + _FURTHER, 0.0))


def values_agree(error: Floats, floor: Floats, moved: Floats) -> Flags:
    """Return which calls' chosen values are as near as what came in: whatever was chosen, it was as good."""
    return np.asarray(error <= floor + _VALUES * moved)


def error_of_other_rows(share: Floats, peak: Floats) -> Floats:
    """Return the relative error where a share of the rows are others: 2·√share, times the largest over the mean size.

    Where all rows may be others, the two have nothing in common, and any error is explained.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(share >= 1.0, np.inf, np.where(share > 0, 2.0 * np.sqrt(2.0 * share) * peak, 0.0)))
