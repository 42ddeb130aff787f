"""The fingerprint of a whole tensor, as far as those of its pieces tell it.

A concatenation has the pieces' counts, extremes, mean and l2; its hash and sketch would need the pieces' places in the
whole. A sum has the sum of the sketches, because those are linear, and of the means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from numscope.compare.load.side import Floats, Tensors

FITS = 1e-4  # relative: pieces that come as near as this to the other tensor make it
_OF_SKETCH = 0.4  # relative: four times the deviation of a sketch's norm, 1/√(2 × 61), from that of what it shows
_CANCELLED = 1e-2  # of the norms of what is added: a sum that is smaller tells nothing by its own norm


class How(Enum):
    """How pieces make a whole."""

    WHOLE = "is whole on each rank"
    CONCATENATED = "is cut over the ranks"
    SUMMED = "is a sum over the ranks"
    AVERAGED = "is a mean over the ranks"


@dataclass(frozen=True)
class Piece:
    """The fingerprint of a piece, or of what several make."""

    elements: int
    nan: int
    posinf: int
    neginf: int
    zero: int
    min: float
    max: float
    mean: float
    l2: float
    sketch: Floats | None
    row: int = -1  # of the one tensor that this is
    how: How = How.WHOLE
    summands: float = 0.0  # norms of what was added, all together

    @property
    def finite(self) -> int:
        return self.elements - self.nan - self.posinf - self.neginf

    @property
    def is_sum(self) -> bool:
        return self.summands > 0

    def times(self, factor: float) -> Piece:
        """Return the piece with all elements multiplied."""
        if factor == 1.0:
            return self
        sketch = None if self.sketch is None else self.sketch * factor
        return replace(
            self,
            min=self.min * factor,
            max=self.max * factor,
            mean=self.mean * factor,
            l2=self.l2 * factor,
            sketch=sketch,
            row=-1,
            summands=self.summands * factor,
        )

    def apart(self, other: Piece) -> float:
        """Return the distance of two wholes of as many elements, relative to the larger: at least what is known of it."""
        counts = ((self.nan, other.nan), (self.posinf, other.posinf), (self.neginf, other.neginf))
        if any(one != another for one, another in counts):
            return math.inf
        scale = max(self.l2, other.l2, self.summands, other.summands)
        if not scale > 0:
            return 0.0 if scale == 0 else math.nan
        if self.sketch is not None and other.sketch is not None:
            return float(np.linalg.norm(self.sketch - other.sketch)) / scale
        root = math.sqrt(max(self.finite, 1))
        least = [abs(self.mean - other.mean) * root]
        if max(self.summands, other.summands) == 0:
            least += [abs(self.l2 - other.l2), abs(self.min - other.min), abs(self.max - other.max)]
        else:  # the norm of a sum is that of its sketch, and nothing but rounding where most has cancelled
            gap = abs(self.l2 - other.l2)
            if gap > _OF_SKETCH * max(self.l2, other.l2) and gap > _CANCELLED * scale:
                return gap / scale
        return max((one for one in least if not math.isnan(one)), default=math.nan) / scale


def piece(tensors: Tensors, row: int) -> Piece:
    """Return the fingerprint of one tensor."""
    return Piece(
        elements=int(tensors.elements[row]),
        nan=int(tensors.nan[row]),
        posinf=int(tensors.posinf[row]),
        neginf=int(tensors.neginf[row]),
        zero=int(tensors.zero[row]),
        min=float(tensors.min[row]),
        max=float(tensors.max[row]),
        mean=float(tensors.mean[row]),
        l2=float(tensors.l2[row]),
        sketch=tensors.sketch[row] if tensors.sketched[row] else None,
        row=row,
    )


def concatenated(parts: Sequence[Piece]) -> Piece:
    """Return what the pieces make when they are put together, in whatever order and dimension."""
    finite = sum(part.finite for part in parts)
    held = [part for part in parts if part.finite]
    return Piece(
        sum(part.elements for part in parts),
        sum(part.nan for part in parts),
        sum(part.posinf for part in parts),
        sum(part.neginf for part in parts),
        sum(part.zero for part in parts),
        min((part.min for part in held), default=math.nan),
        max((part.max for part in held), default=math.nan),
        sum(part.mean * (part.finite / finite) for part in held) if finite else math.nan,
        math.sqrt(math.fsum(part.l2**2 for part in held)),
        None,
        how=How.CONCATENATED,
        summands=math.sqrt(math.fsum(part.summands**2 for part in parts)),
    )


def summed(parts: Sequence[Piece]) -> Piece | None:
    """Return the sum of the pieces, None where their sketches are not known or not all elements are finite."""
    sketches = [part.sketch for part in parts if part.sketch is not None]
    if len(sketches) < len(parts) or any(part.finite != part.elements for part in parts):
        return None
    sketch: Floats = np.sum(sketches, axis=0)
    return Piece(
        parts[0].elements,
        0,
        0,
        0,
        0,
        math.nan,
        math.nan,
        sum(part.mean for part in parts),
        float(np.linalg.norm(sketch)),
        sketch,
        how=How.SUMMED,
        summands=sum(part.l2 for part in parts),
    )


def averaged(parts: Sequence[Piece]) -> Piece | None:
    """Return the mean of the pieces, None where their sum is not known."""
    total = summed(parts)
    return None if total is None else replace(total.times(1.0 / len(parts)), how=How.AVERAGED)
