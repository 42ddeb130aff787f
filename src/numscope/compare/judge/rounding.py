"""How much error rounding alone explains: a rule for each class of operator, and the constants of the rules.

A right call's result may be off for two reasons. It rounds by itself: the `floor`, in units of the unit roundoff u. And it
hands on the error that came in: `absolute` times its absolute size, `relative` times its relative size. Rules read norms,
which every fingerprint has, because a sum rounds in proportion to its terms, not to its result: one that cancels to nearly
nothing may be off by all of itself (the gradient of a key's bias, which is zero but for rounding).

docs/explanation/verdicts.md says it with examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from numscope.compare.load.side import Flags, Floats, Ints
from numscope.core.dtypes import SINGLE
from numscope.core.operators import Rounding

MOST_CANCELLATION = 1e6  # no cancellation is believed beyond this factor
_TINY = 1e-300  # stands for a norm of zero under a fraction
_LARGEST_EXPONENT = 600.0  # of e: products of norms stay finite, and above zero


class Constants(NamedTuple):
    """The constants of one class of operators."""

    floor: float  # units of roundoff, in float32 and above
    narrow_floor: float  # below: kernels accumulate in float32 and round once, so that the number of terms adds nothing
    absolute: float  # gain of an absolute error, 0 where the relative one tells more
    relative: float  # gain of a relative error


# Generous where it costs nothing: mostly the runs agree to the bit before a bug, and nothing comes in.
FORWARD = {
    Rounding.MOVE: Constants(0, 0, 4, 2),
    Rounding.LIPSCHITZ: Constants(4, 4, 4, 2),  # kernels differ by an ulp or two, each 2u
    Rounding.SCALE: Constants(4, 4, 0, 8),
    Rounding.PRODUCT: Constants(4, 4, 0, 8),
    Rounding.SUM: Constants(4, 4, 4, 8),
    Rounding.NORMALISE: Constants(8, 2, 0, 16),
    Rounding.EXPONENTIAL: Constants(8, 3, 0, 16),
    Rounding.STEEP: Constants(8, 8, 0, 48),
    Rounding.DISCRETE: Constants(0, 0, 0, 1e3),  # what an error flips is not in proportion to it
    Rounding.RANDOM: Constants(4, 4, 4, 4),
    Rounding.CREATE: Constants(4, 4, 0, 8),
    Rounding.COMMUNICATE: Constants(8, 8, 4, 8),
    Rounding.OTHER: Constants(16, 16, 0, 32),
}
BACKWARD = Constants(16, 6, 4, 24)  # several products and sums
BACKWARD_OF_MOVE = Constants(8, 2, 4, 2)  # the gradient of a gather is a sum
PER_ROOT_OF_TERMS = 0.25  # units of roundoff that the √n of n terms adds: blocked kernels show no more
MOST_SCALE = 32.0  # gain of an elementwise product beyond its constant
RMS_TO_LARGEST = 10.0  # the largest logit is no more root mean squares away
MOST_LOGIT = 1e4
MOST_NARROW_FLOOR = 256.0  # units of roundoff: in narrow formats, more would explain everything
SIGN_LIKE = 1e6  # gain of a relative error where an element that is zero but for rounding comes out as ±1
KINK = 6.0  # a relative error e flips about e of a mask's elements: 6√e comes out
TWO_PRECISIONS = 4.0  # units of roundoff by which outputs of two dtypes differ at least


@dataclass(frozen=True)
class Norms:
    """The norms of each pair of calls that the rules read; of several tensors the largest, unless something else is said."""

    roundoff: Floats
    out: Floats  # norm of the output that is off by the most
    off_elements: Floats  # … and its number of elements
    out_elements: Floats
    largest_in: Floats  # norm
    in_elements: Floats
    deviation: Floats  # standard deviation of an input
    log_product: Floats  # Σ log‖x‖ over the inputs
    log_elements: Floats  # Σ log n over the inputs
    forward_in: Floats  # of the forward call of a backward one: norms of its input and output, 0 for none
    forward_out: Floats
    averages: Flags  # a sum that is divided by the number of its terms

    def of(self, rows: Flags) -> Norms:
        """Return the norms of some of the pairs."""
        return Norms(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})

    @property
    def narrow(self) -> Flags:
        """Which calls compute in a format of fewer digits than float32."""
        return np.asarray(self.roundoff > 4 * SINGLE)

    @property
    def result(self) -> Floats:
        """The norm of the output, to divide by."""
        return np.maximum(self.out, _TINY)

    @property
    def product(self) -> Floats:
        """The product of the inputs' norms."""
        return np.exp(np.clip(self.log_product, -_LARGEST_EXPONENT, _LARGEST_EXPONENT))


class Bound(NamedTuple):
    """The error that rounding explains at each pair of calls: a floor in units of roundoff, and gains of incoming errors."""

    floor: Floats
    absolute: Floats
    relative: Floats


Rule = Callable[[Norms, Constants], Bound]


def _constant(norms: Norms, c: Constants) -> Bound:
    """fl(f(x)) = f(x)·(1 + δ) with |δ| ≤ c·u, whatever x is."""
    return Bound(_floor(norms, c), np.full(len(norms.out), c.absolute), np.full(len(norms.out), c.relative))


def _scale(norms: Norms, c: Constants) -> Bound:
    """‖Δx∘y‖ / ‖x∘y‖ exceeds ‖Δx‖/‖x‖ by up to ‖x‖‖y‖ / ‖x∘y‖: the error may lie where y is large."""
    bound = _constant(norms, c)
    return bound._replace(relative=c.relative * np.clip(norms.product / norms.result, 1.0, MOST_SCALE))


def _product(norms: Norms, c: Constants) -> Bound:
    """‖fl(AB) - AB‖ ≈ (c + √K/4)·u·‖A‖‖B‖/√K with K terms to a sum; for random data ‖A‖‖B‖/√K is ‖AB‖ itself.

    K follows from the numbers of elements: of [m, K] times [K, n], √(mK·Kn / mn).
    """
    elements = np.exp(np.minimum(norms.log_elements, _LARGEST_EXPONENT))
    terms = np.sqrt(np.maximum(elements / norms.out_elements, 1.0))
    terms = np.clip(terms, 1.0, norms.in_elements)
    cancelled = _cancellation(norms.product, norms.result * np.sqrt(terms))
    return _enlarged(_constant(norms, c)._replace(floor=_floor(norms, c, terms)), cancelled)


def _sum(norms: Norms, c: Constants) -> Bound:
    """‖fl(Σx) - Σx‖ ≈ (c + √m/4)·u·‖x‖ with m terms to a sum; the mean of m terms is Σx/m."""
    terms = np.maximum(norms.in_elements / norms.out_elements, 1.0)
    cancelled = _cancellation(norms.largest_in, norms.result * np.where(norms.averages, terms, 1.0))
    return _enlarged(_constant(norms, c)._replace(floor=_floor(norms, c, terms)), cancelled)


def _normalise(norms: Norms, c: Constants) -> Bound:
    """x - mean(x) rounds as x does, and cancels by ‖x‖ / (√n·σ); the mean itself, where it is a result too, is a sum."""
    centred = _cancellation(norms.largest_in, np.maximum(np.sqrt(norms.in_elements) * norms.deviation, _TINY))
    terms = np.maximum(norms.in_elements / norms.off_elements, 1.0)
    mean = np.fmax(centred, _cancellation(norms.largest_in, norms.result * terms))
    return _enlarged(_constant(norms, c), np.where(terms > 1, mean, centred))


def _exponential(norms: Norms, c: Constants) -> Bound:
    """Δeˣ/eˣ = Δx = (Δx/x)·x: a relative error comes out times the largest logit, which norms only bound."""
    logit = np.minimum(RMS_TO_LARGEST * norms.largest_in / np.sqrt(norms.in_elements), MOST_LOGIT)
    return _constant(norms, c)._replace(relative=np.maximum(c.relative, 2.0 * logit))


def _backward(norms: Norms, c: Constants) -> Bound:
    """‖Δ‖ ≈ (c + √n/4)·u·‖terms‖: of ‖g‖ times the forward call's slope, or of ‖g‖‖x‖ summed over n elements."""
    slope = np.where(norms.forward_in > 0, norms.forward_out / np.maximum(norms.forward_in, _TINY), 1.0)
    elementwise = _cancellation(norms.largest_in * np.maximum(slope, 1.0), norms.result)
    product = norms.product * norms.forward_in / norms.result
    summed = np.clip(product / np.sqrt(norms.in_elements), 1.0, MOST_CANCELLATION)
    bound = _constant(norms, c)._replace(floor=_floor(norms, c, norms.in_elements))
    return _enlarged(bound, np.maximum(elementwise, summed))


RULES: dict[Rounding, Rule] = {
    Rounding.SCALE: _scale,
    Rounding.PRODUCT: _product,
    Rounding.SUM: _sum,
    Rounding.NORMALISE: _normalise,
    Rounding.EXPONENTIAL: _exponential,
}


def bounds(classes: Ints, backward: Flags, sign_like: Flags, norms: Norms) -> Bound:
    """Return what rounding explains at each pair of calls, by the class of its operator and its direction."""
    moves = classes == Rounding.MOVE
    parts: list[tuple[Flags, Rule, Constants]] = [
        (~backward & (classes == kind), RULES.get(kind, _constant), constants) for kind, constants in FORWARD.items()
    ]
    parts += [(backward & ~moves, _backward, BACKWARD), (backward & moves, _constant, BACKWARD_OF_MOVE)]
    whole = Bound(*(np.zeros(len(classes)) for _ in Bound._fields))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for rows, rule, constants in parts:
            if rows.any():
                for column, values in zip(whole, rule(norms.of(rows), constants)):
                    column[rows] = values
    floor = np.where(norms.narrow & ~backward, np.minimum(whole.floor, MOST_NARROW_FLOOR), whole.floor)
    return Bound(floor, whole.absolute, np.where(sign_like & ~backward, SIGN_LIKE, whole.relative))


def common_roundoff(sides: Sequence[float], coarser: bool) -> float:
    """Return the unit roundoff by which two sides may differ.

    It is that of the `coarser` one, or else that of the finer one, but not less than float32's unless both are finer:
    double precision on one side does not make float32 on the other a fault.
    """
    if coarser or not sides:
        return max(sides, default=0.0)
    least = min(sides)
    return max(least, min(max(sides), SINGLE)) if least else 0.0


def _floor(norms: Norms, c: Constants, terms: Floats | float = 0.0) -> Floats:
    """Return the units of roundoff of calls that add up so many terms."""
    return np.where(norms.narrow, c.narrow_floor, c.floor + PER_ROOT_OF_TERMS * np.sqrt(terms))


def _cancellation(terms: Floats, result: Floats) -> Floats:
    """Return how many times the terms of a sum are as large as their result."""
    return np.clip(terms / result, 1.0, MOST_CANCELLATION)


def _enlarged(bound: Bound, cancelled: Floats) -> Bound:
    """Return a bound where terms cancel: what they round, and the relative error they bring, count that much more."""
    return bound._replace(floor=bound.floor * cancelled, relative=bound.relative * cancelled)
