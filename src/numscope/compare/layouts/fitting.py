"""Finds what the pieces of each tensor make: the way that fits the other run's tensor.

Shapes decide most of it: a piece with as many elements as the other run's tensor is whole, a part of a sum, or of a mean;
smaller ones are cut. Parameters, and gradients that reach an optimizer, are whole or cut, never sums: there a rank that
differs is wrong. Where a loss is a mean over fewer samples, each piece of a gradient is as many times too large.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.slots import STATE, SlotPairs
from numscope.compare.layouts.pieces import FITS, How, Piece, averaged, concatenated, piece, summed
from numscope.compare.layouts.whole_step import WholeStep, alike, taken
from numscope.compare.load.side import Flags, Ints, Tensors

_NEARER = 0.1  # a sum is believed where it is ten times nearer than any piece
_ORDER = (How.WHOLE, How.CONCATENATED, How.SUMMED, How.AVERAGED)


_COUNTS = ("elements", "nan", "posinf", "neginf", "zero", "min", "max", "mean", "l2")


class _Use(NamedTuple):
    """A tensor as it is used: `strict` by an optimizer or as a parameter, which cannot be a part of a sum."""

    row: int
    strict: bool


@dataclass(frozen=True)
class Choice:
    """A way to read the pieces of a tensor."""

    whole: Piece
    rank: int = -1  # on which it is not as on the others
    is_one_of_unlike: bool = False  # of pieces that should be the same
    factor: float = 1.0
    is_scaled: bool = False
    parts: int = 1  # into which it is cut

    def reads_as(self, other: Choice | None) -> bool:
        """Tell whether two choices for the same pieces come to the same."""
        same = other is not None and self.whole.how is other.whole.how and self.whole.row == other.whole.row
        return other is not None and same and self.factor == other.factor


class _Fit(NamedTuple):
    """A way to read the pieces of both sides."""

    a: Choice
    b: Choice
    distance: float

    def choice(self, side: int) -> Choice:
        return self.b if side else self.a


class Fitted(NamedTuple):
    """Both sides with the tensors of paired slots whole, and the slots with the rows of these."""

    a: WholeStep
    b: WholeStep
    slots: SlotPairs


def fit(a: WholeStep, b: WholeStep, alignment: Alignment, slots: SlotPairs) -> Fitted:
    """Return both sides with the tensors of paired slots whole."""
    return _Fitting(a, b, alignment, slots).run()


class _Fitting:
    """The choices made so far: a tensor that is seen again is read as before."""

    def __init__(self, a: WholeStep, b: WholeStep, alignment: Alignment, slots: SlotPairs) -> None:
        self.alignment, self.slots = alignment, slots
        self.readings = _Reading(a), _Reading(b)

    def run(self) -> Fitted:
        slots, (a, b) = self.slots, self.readings
        book = a.side.book
        optimizer = (a.side.calls.kind == book.code("optimizer"))[self.alignment.target]
        backward = (a.side.calls.phase == book.code("backward"))[self.alignment.target]
        is_data = (a.side.calls.kind == book.code("data"))[self.alignment.target]
        strict = (slots.role == STATE) | optimizer[slots.pair]
        sums = backward[slots.pair] & ~strict & ~self._having("input", "output.0")
        scaled = backward[slots.pair] & ~strict & ~self._having("parameters_grad")
        columns = (slots.a, slots.b, strict, scaled, sums)
        rows_a, rows_b = slots.a.copy(), slots.b.copy()
        for at, (t, r, is_strict, scaled, adds) in enumerate(zip(*(column.tolist() for column in columns))):
            if a.is_plain(t) and b.is_plain(r):
                continue
            self._choose(_Use(t, is_strict), _Use(r, is_strict), scaled, adds)
            if is_data[slots.pair[at]]:
                a.take_data(_Use(t, is_strict))
                b.take_data(_Use(r, is_strict))
            rows_a[at], rows_b[at] = (one.row_of(_Use(row, is_strict)) for one, row in ((a, t), (b, r)))
        shape_a, shape_b = a.side.tensors.shape[slots.a], b.side.tensors.shape[slots.b]
        whole_a, whole_b = a.resolved(rows_a, shape_b), b.resolved(rows_b, shape_a)
        return Fitted(whole_a, whole_b, replace(slots, a=rows_a, b=rows_b))

    def _having(self, *heads: str) -> Flags:
        """Return which slots' names begin so."""
        words = self.readings[0].side.book.words
        return np.asarray(np.array([word.startswith(heads) for word in words] + [False])[self.slots.slot])

    def _choose(self, t: _Use, r: _Use, scaled: bool, adds: bool) -> None:
        a, b = self.readings
        fits = [
            one
            for mine in a.options(t)
            for theirs in b.options(r)
            if mine.whole.elements == theirs.whole.elements
            for one in self._scaled(mine, theirs, scaled, adds)
        ]
        sums = [one for one in fits if adds and How.CONCATENATED not in _hows(one)]
        found = _best(sums if any(one.distance < FITS for one in sums) else fits)
        if found is not None:
            a.take(t, found.a, scaled and found.distance < FITS)
            b.take(r, found.b, scaled and found.distance < FITS)

    def _scaled(self, mine: Choice, theirs: Choice, scaled: bool, adds: bool) -> Iterator[_Fit]:
        a, b = self.readings
        for one in a.scaled(mine, adds) if scaled else [mine]:
            for other in b.scaled(theirs, adds) if scaled else [theirs]:
                yield _Fit(one, other, one.whole.apart(other.whole))


class _Reading:
    """The choices for the tensors of one side."""

    def __init__(self, side: WholeStep) -> None:
        self.side = side
        self.chosen: dict[_Use, Choice] = {}
        self.row: dict[_Use, int] = {}
        self._more = 0  # rows of their own
        self.factor: float | None = None  # of gradients that are cut, once one is known
        self._most = max((len(pieces) for pieces in side.pieces), default=1)
        self._parts_of_data = 0

    def is_plain(self, row: int) -> bool:
        return len(self.side.pieces[row]) == 1

    def options(self, use: _Use) -> list[Choice]:
        known = self.chosen.get(use)
        return [known] if known is not None else list(_options(self.side, use.row, not use.strict))

    def scaled(self, choice: Choice, adds: bool) -> Iterator[Choice]:
        """Yield a gradient as it is, and divided by the number of parts of a batch of which each has a loss of its own.

        Once the number is known, all gradients that are cut are divided by it, but for those that may be of parameters.
        """
        if choice.whole.elements == 1 and choice.whole.how is How.WHOLE and not choice.is_scaled:
            # The gradient of a loss that is a sum over parts of a batch is the sum of theirs.
            for parts in range(1, self._most + 1):
                if self._most % parts == 0:
                    yield replace(choice, whole=choice.whole.times(float(parts)), is_scaled=True)
        elif choice.whole.how is not How.CONCATENATED or choice.is_scaled:
            yield choice
        elif self.factor is not None:
            if adds:
                yield choice
            yield replace(choice, whole=choice.whole.times(self.factor), is_scaled=True)
        else:
            for parts in range(1, self._most + 1):
                if self._most % parts == 0:
                    yield replace(choice, whole=choice.whole.times(1.0 / parts), factor=1.0 / parts, is_scaled=True)

    def take_data(self, use: _Use) -> None:
        """Note into how many parts what enters the model is cut: as many losses there may be."""
        choice = self.chosen.get(use)
        if choice is not None and choice.parts > 1:
            self._most = choice.parts if not self._parts_of_data else max(self._most, choice.parts)
            self._parts_of_data = self._most

    def take(self, use: _Use, choice: Choice, is_sure: bool) -> None:
        """Keep a choice; a gradient that fits tells by how much all are too large."""
        self.chosen.setdefault(use, choice)
        if is_sure and choice.is_scaled and choice.whole.how is How.CONCATENATED and self.factor is None:
            self.factor = choice.factor

    def row_of(self, use: _Use) -> int:
        """Return the row that shows a tensor in such a use: one of its own, where an optimizer is given parts of a sum."""
        if use not in self.row:
            other, mine = use._replace(strict=not use.strict), self.chosen.get(use)
            same = other not in self.row or mine is None or mine.reads_as(self.chosen.get(other))
            self.row[use] = use.row if same else len(self.side.pieces) + self._more
            self._more += not same
        return self.row[use]

    def resolved(self, rows: Ints, shapes: Ints) -> WholeStep:
        """Return the side with what its pieces make, in the other side's shapes."""
        side = self.side
        assert side.pool is not None
        more = {row: use.row for use, row in self.row.items() if row >= len(side.pieces)}
        sources = [*range(len(side.pieces)), *(more[row] for row in sorted(more))]
        tensors = taken([side.tensors], np.array(sources, np.int64))
        ranks = side.rank_of_tensor[sources] if sources else side.rank_of_tensor
        summands = side.summands[sources] if sources else side.summands
        shape_of = dict(zip(rows.tolist()[::-1], shapes.tolist()[::-1]))
        for use, choice in self.chosen.items():
            row, whole = self.row.get(use, use.row), choice.whole
            for name in _COUNTS:
                getattr(tensors, name)[row] = getattr(whole, name)
            if whole.row >= 0:
                tensors.hash[row] = side.pool.hash[whole.row]
            tensors.sketched[row] = whole.sketch is not None
            tensors.sketch[row] = 0.0 if whole.sketch is None else whole.sketch
            if whole.row < 0:
                tensors.kept[row] = tensors.sampled[row] = False
            if whole.how is How.CONCATENATED:
                tensors.shape[row] = shape_of.get(row, tensors.shape[row])
            ranks[row] = choice.rank
            summands[row] = whole.summands
        pieces = tuple(side.pieces[row] for row in sources)
        return replace(side, tensors=tensors, rank_of_tensor=ranks, pieces=pieces, summands=summands)


def _best(fits: list[_Fit]) -> _Fit | None:
    """Return the nearest of several ways; what is whole on each rank before sums, and of unlike pieces the one that is off."""
    if not fits:
        return None
    joint = [one for one in fits if not (one.a.is_one_of_unlike and one.b.is_one_of_unlike)]
    fits = joint if any(one.distance < FITS for one in joint) else fits
    best = min(fits, key=_place)
    adds = {How.SUMMED, How.AVERAGED}
    if _hows(best) & adds:
        plain = [one for one in fits if not (one.a.whole.is_sum or one.b.whole.is_sum)]
        least = min((one.distance for one in plain if not math.isnan(one.distance)), default=math.inf)
        if plain and (least < FITS or not best.distance < _NEARER * least):
            best = min(plain, key=_place)
    if not (best.a.is_one_of_unlike or best.b.is_one_of_unlike):
        return best
    rivals = [one for one in fits if _hows(one) == _hows(best) and one.a.is_one_of_unlike == best.a.is_one_of_unlike]
    for side in (0, 1):
        row_of = {id(one): one.choice(side).whole.row for one in rivals}
        rows = set(row_of.values())
        nearest = {row: min((one for one in rivals if row_of[id(one)] == row), key=_place) for row in rows}
        worst = max(nearest.values(), key=_place)
        if len(rows) > 1 and _place(worst) > _place(best):
            best = worst
    return best


def _hows(fit: _Fit) -> set[How]:
    return {fit.a.whole.how, fit.b.whole.how}


def _place(one: _Fit) -> tuple[float, bool, int]:
    distance = math.inf if math.isnan(one.distance) else one.distance
    both = one.a.whole, one.b.whole
    by_mean = any(whole.is_sum for whole in both) and any(whole.sketch is None for whole in both)
    return (
        (0.0 if distance < FITS else distance),
        by_mean,
        sum(_ORDER.index(how) for how in (one.a.whole.how, one.b.whole.how)),
    )


def _options(side: WholeStep, row: int, may_add: bool) -> Iterator[Choice]:
    """Yield the ways in which the pieces of a tensor can make a whole."""
    assert side.pool is not None
    pool, rows = side.pool, side.pieces[row]
    parts = [piece(pool, one) for one in rows]
    if len(parts) == 1:
        yield Choice(parts[0])
        return
    distinct = _distinct(pool, rows)
    lists = [parts] if len(distinct) == len(parts) else [parts, distinct]
    if len(distinct) == 1:
        yield Choice(parts[0])
        may_add = False
    elif len({one.elements for one in distinct}) == 1:
        for number, one in zip(rows, parts):
            yield Choice(one, int(side.rank_of_piece[number]), is_one_of_unlike=True)
    for some in lists:
        if len(some) > 1:
            again = _repeated(pool, rows) if some is parts else None
            rank = int(side.rank_of_piece[again]) if again is not None else -1
            yield Choice(concatenated(some), rank, parts=len(some))
            yield from _added(some, may_add)
    for groups in _groupings(distinct if len(distinct) > 1 else parts):
        inner_sums = [averaged(group) for group in groups], [summed(group) for group in groups]
        for sums in inner_sums if may_add else ():
            whole = [one for one in sums if one is not None]
            if len(whole) == len(groups):
                yield Choice(concatenated(whole))
        yield from _added([concatenated(group) for group in groups], may_add)
        if may_add and len({one.elements for group in groups for one in group}) == 1:
            totals = [total for group in groups if (total := summed(group)) is not None]
            mean_of_totals = averaged(totals) if len(totals) == len(groups) else None
            if mean_of_totals is not None:
                yield Choice(mean_of_totals)


def _added(parts: Sequence[Piece], may_add: bool) -> Iterator[Choice]:
    if may_add and len({one.elements for one in parts}) == 1:
        for whole in (summed(parts), averaged(parts)):
            if whole is not None:
                yield Choice(whole)


def _groupings(parts: list[Piece]) -> Iterator[list[list[Piece]]]:
    """Yield the ways to divide ranks into groups of a mesh: neighbours, or ranks that are as far apart."""
    count = len(parts)
    for size in range(2, count // 2 + 1):
        if count % size == 0:
            yield [parts[begin : begin + size] for begin in range(0, count, size)]
            yield [parts[begin :: count // size] for begin in range(count // size)]


def _distinct(pool: Tensors, rows: Sequence[int]) -> list[Piece]:
    found: list[int] = []
    for row in rows:
        if not any(alike(pool, (row, other)) for other in found):
            found.append(row)
    return [piece(pool, row) for row in found]


def _repeated(pool: Tensors, rows: Sequence[int]) -> int | None:
    """Return the first piece that is an earlier one again."""
    return next((row for at, row in enumerate(rows) if any(alike(pool, (row, one)) for one in rows[:at])), None)
