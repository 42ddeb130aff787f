"""Which elements are wrong, and how: a tile, a row, a column, one element, or all of them in the way of a coarse format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from numscope.capture.torch.verify.lens import Array, Range
from numscope.capture.torch.verify.measure import Compared, Deviation
from numscope.core.json_value import JsonObject

_ALL = 0.6  # share of the elements; rounding hides an error in some of them
_MATCH = 0.1  # of the error that a factor leaves


@dataclass(frozen=True)
class Pattern:
    """The wrong elements among those that were computed again."""

    kind: str  # all, factor, element, row, column, tile, some, projection
    elements: int
    off: int
    largest: float  # error, as a share of the usual size of an element
    others: float  # of the elements that are not off, root mean square, likewise
    typical: float  # of those that are off
    factor: float | None = None  # of all elements, where that is all there is
    places: tuple[str, ...] = ()  # per dimension of the output: "3" or "8:16"
    shape: tuple[int, ...] = ()
    slot: int = 0
    got: float | None = None  # of one element that is off by the most
    exact: float | None = None

    def to_dict(self) -> JsonObject:
        """Return the pattern as JSON."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def pattern(parts: Sequence[Compared], deviations: Sequence[Deviation], limit: float) -> Pattern | None:
    """Describe the part that is off by the most; None where none is."""
    order = sorted(range(len(parts)), key=lambda n: (parts[n].projected, -deviations[n].units))
    worst = next((n for n in order if deviations[n].units > limit), None)
    if worst is None:
        return None
    part, found = parts[worst], deviations[worst]
    got, exact = np.asarray(part.got, np.float64), np.asarray(part.exact, np.float64)
    exact = np.broadcast_to(exact, got.shape)
    bad = np.asarray(found.excess > limit)
    known = np.isfinite(exact)
    usual = math.sqrt(float(np.mean(np.square(np.where(known, exact, 0.0))))) or 1.0
    with np.errstate(all="ignore"):
        error = np.abs(got - exact) / usual
    error = np.where(known, np.where(np.isnan(error), np.inf, error), np.where(bad, np.inf, 0.0))
    off = int(bad.sum())
    at = np.unravel_index(int(np.argmax(np.where(bad, found.excess, -1.0))), got.shape) if got.ndim else ()
    kind, places = _kind(bad, part, off)
    factor = _factor(got, exact) if kind == "all" else None
    return Pattern(
        kind="factor" if factor is not None else "projection" if part.projected else kind,
        elements=got.size,
        off=off,
        largest=float(error[bad].max()),
        others=_root(error[~bad]),
        typical=_root(error[bad]),
        factor=factor,
        places=places,
        shape=part.shape,
        slot=part.slot,
        got=float(got[at]),
        exact=float(exact[at]),
    )


def _root(values: Array) -> float:
    return (
        math.sqrt(float(np.mean(np.square(values))))
        if values.size and np.isfinite(values).all()
        else (math.inf if values.size else 0.0)
    )


def _kind(bad: Array, part: Compared, off: int) -> tuple[str, tuple[str, ...]]:
    """Return what the wrong elements look like, and where they are in the output."""
    if off >= _ALL * bad.size and bad.size > 1:
        return "all", ()
    box: tuple[Range, ...] = part.box if part.box is not None else tuple(Range(0, 1, size) for size in bad.shape)
    if len(box) != bad.ndim:
        return "some", ()
    hit = [np.flatnonzero(bad.any(axis=tuple(d for d in range(bad.ndim) if d != dim))) for dim in range(bad.ndim)]
    spans = [(r.places[found[0]], r.places[found[-1]]) for r, found in zip(box, hit)]
    places = tuple(str(low) if low == high else f"{low}:{high + 1}" for low, high in spans)
    if off == 1:
        return "element", places
    filled = off >= _ALL * math.prod(len(found) for found in hit)
    single = [dim for dim, found in enumerate(hit) if len(found) == 1 and bad.shape[dim] > 1]
    if filled and bad.ndim >= 1 and single and single[-1] == bad.ndim - 1:
        return "column", places
    if filled and bad.ndim >= 2 and len(hit[-1]) >= _ALL * bad.shape[-1] and len(hit[-2]) < bad.shape[-2]:
        return ("row" if len(hit[-2]) == 1 else "rows"), places
    if filled and bad.ndim >= 2:
        return "tile", places
    return "some", places


def _factor(got: Array, exact: Array) -> float | None:
    """Return the factor by which all elements are off, if that is what is wrong with them."""
    known = np.isfinite(got) & np.isfinite(exact)
    got, exact = got[known], exact[known]
    size = float(np.sum(exact * exact))
    if not size or got.size < 4:
        return None
    factor = float(np.sum(got * exact)) / size
    left = float(np.sum(np.square(got - factor * exact)))
    return factor if left <= _MATCH**2 * float(np.sum(np.square(got - exact))) else None
