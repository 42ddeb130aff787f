"""How much error rounding alone explains: a rule for each class of operator.

A right call's result may be off for two reasons. It rounds by itself: the `floor`, in units of the unit roundoff u, which
is the rule's shape times what the operator was measured to be off (accuracy.py). And it
hands on the error that came in: `absolute` times its absolute size, `relative` times its relative size. Rules read norms,
which every fingerprint has, because a sum rounds in proportion to its terms, not to its result: one that cancels to nearly
nothing may be off by all of itself (the gradient of a key's bias, which is zero but for rounding).

docs/explanation/rounding.md says it with examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from numscope.compare.load.side import Flags, Floats, Ints
from numscope.core.dtypes import SINGLE
from numscope.core.operators import Rounding

MOST_CANCELLATION = 1 / SINGLE  # beyond it a result of float32 is nothing but rounding
_TINY = 1e-300  # stands for a norm of zero under a fraction
_LARGEST_EXPONENT = 600.0  # of e: products of norms stay finite, and above zero


class Gains(NamedTuple):
    """How far a class of operators amplifies an error that comes in."""

    absolute: float  # gain of an absolute error, 0 where the relative one tells more
    relative: float  # gain of a relative error


# Generous where it costs nothing: mostly the runs agree to the bit before a bug, and nothing comes in.
FORWARD = {
    Rounding.MOVE: Gains(4, 2),
    Rounding.LIPSCHITZ: Gains(4, 2),
    Rounding.SCALE: Gains(0, 8),
    Rounding.PRODUCT: Gains(0, 8),
    Rounding.SUM: Gains(4, 8),
    Rounding.CHANNELWISE: Gains(0, 16),
    Rounding.GATED: Gains(0, 16),  # as the softmax or the gates inside
    Rounding.NORMALISE: Gains(0, 16),
    Rounding.FOURIER: Gains(
        0, 2
    ),  # it keeps norms; the half spectrum of real numbers holds between ½ and 1 of their square
    Rounding.EXPONENTIAL: Gains(0, 16),
    Rounding.STEEP: Gains(0, 48),
    Rounding.DISCRETE: Gains(0, 1e3),  # what an error flips is not in proportion to it
    Rounding.RANDOM: Gains(4, 4),
    Rounding.CREATE: Gains(0, 8),
    Rounding.COMMUNICATE: Gains(4, 8),
    Rounding.OTHER: Gains(0, 32),
}
BACKWARD = Gains(4, 24)  # several products and sums
BACKWARD_OF_MOVE = Gains(4, 2)
# Kernels add up blocks of some 256 terms, and the blocks pairwise: of K terms, √K/16 more than of a few.
PER_ROOT_OF_TERMS = 1 / 16
PER_ROOT_OF_ELEMENTS = 1 / 64  # the terms of a gradient's sums are a part of its elements
MOST_SCALE = 32.0  # gain of an elementwise product beyond its constant
RMS_TO_LARGEST = 10.0  # the largest logit is no more root mean squares away
MOST_LOGIT = 1e4
MOST_NARROW_FLOOR = 256.0  # units of roundoff: in narrow formats, more would explain everything
SIGN_LIKE = 1e6  # gain of a relative error where an element that is zero but for rounding comes out as ±1
KINK = 6.0  # a relative error e flips about e of a mask's elements: 6√e comes out
SPACING = 2.0  # units of roundoff between two neighbouring numbers, at most
DEVIATIONS, FURTHER = (
    4.0,
    2.0,
)  # of a count of elements that fall to the other side: √ of what is expected, and by chance
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
    own: Floats  # error of the operator itself, both sides', in units of its rule's shape (accuracy.py)

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


Rule = Callable[[Norms, Gains], Bound]


def _constant(norms: Norms, g: Gains) -> Bound:
    """fl(f(x)) = f(x)·(1 + δ) with |δ| ≤ c·u, whatever x is; c is what the operator itself was measured to be off."""
    return Bound(_floor(norms), np.full(len(norms.out), g.absolute), np.full(len(norms.out), g.relative))


def _scale(norms: Norms, g: Gains) -> Bound:
    """‖Δx∘y‖ / ‖x∘y‖ exceeds ‖Δx‖/‖x‖ by up to ‖x‖‖y‖ / ‖x∘y‖: the error may lie where y is large."""
    bound = _constant(norms, g)
    return bound._replace(relative=g.relative * np.clip(norms.product / norms.result, 1.0, MOST_SCALE))


def _product(norms: Norms, g: Gains) -> Bound:
    """‖fl(AB) - AB‖ ≈ c·(1 + √K/16)·u·‖A‖‖B‖/√K with K terms to a sum; for random data ‖A‖‖B‖/√K is ‖AB‖ itself.

    K follows from the numbers of elements: of [m, K] times [K, n], √(mK·Kn / mn).
    """
    elements = np.exp(np.minimum(norms.log_elements, _LARGEST_EXPONENT))
    terms = np.sqrt(np.maximum(elements / norms.out_elements, 1.0))
    terms = np.clip(terms, 1.0, norms.in_elements)
    cancelled = _cancellation(norms.product, norms.result * np.sqrt(terms))
    return _enlarged(_constant(norms, g)._replace(floor=_floor(norms, PER_ROOT_OF_TERMS * np.sqrt(terms))), cancelled)


def _sum(norms: Norms, g: Gains) -> Bound:
    """‖fl(Σx) - Σx‖ ≈ c·(1 + √m/16)·u·‖x‖ with m terms to a sum; the mean of m terms is Σx/m."""
    terms = np.maximum(norms.in_elements / norms.out_elements, 1.0)
    cancelled = _cancellation(norms.largest_in, norms.result * np.where(norms.averages, terms, 1.0))
    return _enlarged(_constant(norms, g)._replace(floor=_floor(norms, PER_ROOT_OF_TERMS * np.sqrt(terms))), cancelled)


def _normalise(norms: Norms, g: Gains) -> Bound:
    """x - mean(x) rounds as x does, and cancels by ‖x‖ / (√n·σ); the mean itself, where it is a result too, is a sum."""
    centred = _cancellation(norms.largest_in, np.maximum(np.sqrt(norms.in_elements) * norms.deviation, _TINY))
    terms = np.maximum(norms.in_elements / norms.off_elements, 1.0)
    mean = np.fmax(centred, _cancellation(norms.largest_in, norms.result * terms))
    return _enlarged(_constant(norms, g), np.where(terms > 1, mean, centred))


def _channelwise(norms: Norms, g: Gains) -> Bound:
    """A variance in one pass, E x² - (E x)², rounds by its squares and cancels by (‖x‖ / (√n·σ))²; K terms add √K/16."""
    bound = _normalise(norms, g)
    centred = _cancellation(norms.largest_in, np.maximum(np.sqrt(norms.in_elements) * norms.deviation, _TINY))
    longer = np.where(norms.narrow, 1.0, 1.0 + PER_ROOT_OF_TERMS * np.sqrt(norms.in_elements))
    return bound._replace(floor=bound.floor * centred * longer)


def _fourier(norms: Norms, g: Gains) -> Bound:
    """‖fl(Fx) - Fx‖ ≈ c·√(log₂ n)·u·‖Fx‖: each of log₂ n stages keeps the norm and rounds once; n as if all were one row."""
    stages = np.sqrt(np.log2(np.maximum(norms.in_elements, 2.0)))
    return _constant(norms, g)._replace(floor=norms.own * stages)


def _exponential(norms: Norms, g: Gains) -> Bound:
    """Δeˣ/eˣ = Δx = (Δx/x)·x: a relative error comes out times the largest logit, which norms only bound."""
    logit = np.minimum(RMS_TO_LARGEST * norms.largest_in / np.sqrt(norms.in_elements), MOST_LOGIT)
    return _constant(norms, g)._replace(relative=np.maximum(g.relative, 2.0 * logit))


def _backward_of_gated(norms: Norms, g: Gains) -> Bound:
    """‖Δ‖ ≈ c·u·‖g‖ times the forward call's slope: its shares and gates are at most 1, so that no product of norms counts."""
    slope = np.where(norms.forward_in > 0, norms.forward_out / np.maximum(norms.forward_in, _TINY), 1.0)
    return _enlarged(_constant(norms, g), _cancellation(norms.largest_in * np.maximum(slope, 1.0), norms.result))


def _backward(norms: Norms, g: Gains) -> Bound:
    """‖Δ‖ ≈ c·(1 + √n/64)·u·‖terms‖: of ‖g‖ times the forward call's slope, or of ‖g‖‖x‖ summed over n elements."""
    slope = np.where(norms.forward_in > 0, norms.forward_out / np.maximum(norms.forward_in, _TINY), 1.0)
    elementwise = _cancellation(norms.largest_in * np.maximum(slope, 1.0), norms.result)
    product = norms.product * norms.forward_in / norms.result
    summed = np.clip(product / np.sqrt(norms.in_elements), 1.0, MOST_CANCELLATION)
    bound = _constant(norms, g)._replace(floor=_floor(norms, PER_ROOT_OF_ELEMENTS * np.sqrt(norms.in_elements)))
    return _enlarged(bound, np.maximum(elementwise, summed))


def _backward_of_normalise(norms: Norms, g: Gains) -> Bound:
    """The gradient of a weight is a sum over rows. A CPU adds m rows up in the narrow format itself: √(m/6)·u more.

    Each addition rounds by u/√3 of a partial sum that grows as √k: u·√(Σk/3) = u·m/√6, and the result is √m.
    """
    bound = _backward(norms, g)
    rows = np.maximum(norms.in_elements / norms.off_elements, 1.0)
    return bound._replace(floor=bound.floor * np.where(norms.narrow & (rows > 1.0), 1.0 + np.sqrt(rows / 6.0), 1.0))


RULES: dict[Rounding, Rule] = {
    Rounding.SCALE: _scale,
    Rounding.PRODUCT: _product,
    Rounding.SUM: _sum,
    Rounding.NORMALISE: _normalise,
    Rounding.CHANNELWISE: _channelwise,
    Rounding.EXPONENTIAL: _exponential,
    Rounding.FOURIER: _fourier,
}


def bounds(classes: Ints, backward: Flags, sign_like: Flags, norms: Norms) -> Bound:
    """Return what rounding explains at each pair of calls, by the class of its operator and its direction."""
    moves = classes == Rounding.MOVE
    parts: list[tuple[Flags, Rule, Gains]] = [
        (~backward & (classes == kind), RULES.get(kind, _constant), gains) for kind, gains in FORWARD.items()
    ]
    gated, normalises = classes == Rounding.GATED, classes == Rounding.NORMALISE
    parts += [
        (backward & ~moves & ~gated & ~normalises, _backward, BACKWARD),
        (backward & normalises, _backward_of_normalise, BACKWARD),
        (backward & moves, _constant, BACKWARD_OF_MOVE),
        (backward & gated, _backward_of_gated, BACKWARD),
    ]
    whole = Bound(*(np.zeros(len(classes)) for _ in Bound._fields))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for rows, rule, gains in parts:
            if rows.any():
                for column, values in zip(whole, rule(norms.of(rows), gains)):
                    column[rows] = values
    floor = np.where(norms.narrow & ~backward, np.minimum(whole.floor, MOST_NARROW_FLOOR), whole.floor)
    return Bound(floor, whole.absolute, np.where(sign_like & ~backward, SIGN_LIKE, whole.relative))


def error_of_coarser(roundoff: Floats, came_in: Floats, elements: Floats, peak: Floats) -> Floats:
    """Return what a cast to a coarser dtype makes of a relative error e: √(2u·e), far more than e itself.

    A share e/2u of the elements ends one spacing away, which is 2u at most; by chance a few more, perhaps the largest.
    `roundoff` is 0 where a call's results are no coarser than what it is given.
    """
    spacing = SPACING * roundoff
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.minimum(came_in / spacing, 1.0)
        share = expected + (DEVIATIONS * np.sqrt(expected / elements) + FURTHER / elements) * peak**2
    return np.asarray(np.where((roundoff > 0) & (came_in > 0), spacing * np.sqrt(np.minimum(share, 1.0)), 0.0))


def common_roundoff(sides: Sequence[float], coarser: bool) -> float:
    """Return the unit roundoff by which two sides may differ.

    It is that of the `coarser` one, or else that of the finer one, but not less than float32's unless both are finer:
    double precision on one side does not make float32 on the other a fault.
    """
    if coarser or not sides:
        return max(sides, default=0.0)
    least = min(sides)
    return max(least, min(max(sides), SINGLE)) if least else 0.0


def _floor(norms: Norms, longer: Floats | float = 0.0) -> Floats:
    """Return the units of roundoff of calls; `longer`: what the number of terms adds, in float32 and above."""
    return norms.own * np.where(norms.narrow, 1.0, 1.0 + longer)


def _cancellation(terms: Floats, result: Floats) -> Floats:
    """Return how many times the terms of a sum are as large as their result."""
    return np.clip(terms / result, 1.0, MOST_CANCELLATION)


def _enlarged(bound: Bound, cancelled: Floats) -> Bound:
    """Return a bound where terms cancel: what they round, and the relative error they bring, count that much more."""
    return bound._replace(floor=bound.floor * cancelled, relative=bound.relative * cancelled)
