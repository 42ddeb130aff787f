"""Which call made a NaN or an infinity: the one rule that the guard, live, and `numscope check`, afterwards, both apply.

A call with a non-finite output is

* an origin, where its inputs were right: finite, or holding no more than infinities that somebody meant;
* inherited, where an input was already non-finite for a reason that is known;
* meant, where the infinity was asked for: a mask.

docs/explanation/non-finite.md says it in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from numscope.core.operators import Trait, canonical, names_with

SKIPPED_STEP = "optimizer steps that a loss scaler skipped"  # how a run counts them, among what was not recorded

State = Literal["meant", "wrong", "doubtful", "constant", "blank", "parameter", "unknown"]
Answer = Literal["origin", "inherited", "meant", "entered", "constant", "handed on", "ignored"]

MAKES = names_with(Trait.FROM_CONSTANTS)
UNWRITTEN = names_with(Trait.UNINITIALIZED)
_TURNS = names_with(Trait.TURNS_SIGN)
_ADDS = names_with(Trait.ADDS)
_FILLS = names_with(Trait.FROM_CONSTANTS | Trait.FILLS_IN)
_CHOOSES = names_with(Trait.CHOOSES)
_HANDS_ON = names_with(Trait.MOVES)
_WRITES = names_with(Trait.WRITES_PART)
_WORKSPACES = names_with(Trait.WORKSPACE)


@dataclass(frozen=True)
class Counts:
    """How many elements of a tensor are not finite; `low`: some lie within a bit of the dtype's smallest number."""

    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    elements: int = 0
    low: bool = False
    exact: bool = True  # False: only that there are some is known

    @property
    def clean(self) -> bool:
        """Tell whether every element is finite."""
        return not (self.nan or self.posinf or self.neginf)

    def __str__(self) -> str:
        parts = [
            f"{count:,} {word}" if self.exact else f"some {word}"
            for count, word in ((self.nan, "NaN"), (self.posinf, "+inf"), (self.neginf, "-inf"))
            if count
        ]
        return f"{' and '.join(parts) or 'nothing non-finite'} of {self.elements:,} element{'s' * (self.elements != 1)}"


@dataclass(frozen=True)
class Value:
    """A tensor in a slot of a call; its state matters where it is not finite."""

    slot: str
    counts: Counts
    state: State = "unknown"


@dataclass(frozen=True)
class Ruling:
    """The answer about a call with a non-finite output, that output, and the input that explains it."""

    answer: Answer
    output: Value | None = None
    cause: Value | None = None


def chooses(op: str) -> bool:
    """Tell whether an operator only compares, chooses or counts: an infinity need not reach its result."""
    return canonical(op) in _CHOOSES


def is_workspace(op: str, slot: str) -> bool:
    """Tell whether an output is for the operator's own backward part alone."""
    return slot == "output.1" and canonical(op) in _WORKSPACES


def judge(
    op: str,
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    constants: Iterable[float] | None = (),
    aside: bool = False,
) -> Ruling:
    """Judge one call from its tensors before and after, and the numbers among its other arguments (None: unknown).

    `aside`: it is outside all modules, and no gradient flows through it: a metric, where a NaN may stand for "none".
    """
    op = canonical(op)
    bad = [value for value in outputs if not value.counts.clean and not is_workspace(op, value.slot)]
    if not bad:
        return Ruling("ignored")
    # A call that has both is shown by its NaN, which says more than an infinity.
    first = next((value for value in bad if value.counts.nan), bad[0])
    if op in UNWRITTEN:
        return Ruling("ignored", first)
    dirty = [value for value in inputs if not value.counts.clean]
    numbers = None if constants is None else tuple(constants)
    asked = aside and op in _FILLS and not dirty and any(value != value for value in numbers or ())
    if (op in MAKES and not dirty) or asked or _fills_anew(op, inputs, numbers):
        return Ruling("constant" if first.counts.nan else "meant", first)
    wrong = next((value for state in ("wrong", "doubtful") for value in dirty if value.state == state), None)
    if wrong is not None:
        return Ruling("inherited", first, wrong)
    unexplained = [value for value in dirty if _must_be_explained(op, value)]
    entered = min(unexplained, key=lambda value: _ENTERED.index(value.state), default=None)
    if entered is not None and entered.state == "constant":
        only = (op in _HANDS_ON or (aside and op in _FILLS)) and all(
            value.state in ("constant", "meant") for value in dirty
        )
        return Ruling("constant" if only else "origin", first, entered)
    if entered is not None and entered.state == "unknown" and _leaves_as_is(op, dirty):
        return Ruling("handed on", first, entered)
    if entered is not None:
        return Ruling("entered", first, entered)
    if first.counts.nan:
        return Ruling("origin", first, dirty[0] if dirty else None)
    for value in bad:
        if numbers is None and op in _FILLS:
            continue
        if not _is_meant(op, value.counts, dirty, inputs, numbers or ()):
            return Ruling("origin", value, dirty[0] if dirty else None)
    return Ruling("meant", first, dirty[0] if dirty else None)


# Which of several unexplained inputs an answer names, whatever their order: a fault from outside before a constant.
_ENTERED: tuple[State, ...] = ("parameter", "unknown", "blank", "constant")


def is_mask(counts: Counts) -> bool:
    """Tell whether a tensor that came from outside may be a mask: no NaN, no +inf."""
    return counts.nan == 0 and counts.posinf == 0


def _leaves_as_is(op: str, dirty: Sequence[Value]) -> bool:
    """Tell whether a call computes with no non-finite value: it reads a part, copies, or writes beside the value."""
    return op in _HANDS_ON or (op in _WRITES and all(value.slot == "input.0" for value in dirty))


def _fills_anew(op: str, inputs: Sequence[Value], constants: tuple[float, ...] | None) -> bool:
    """Tell whether a call writes constants into memory that held nothing or constants before."""
    if op == "fill":
        return True
    if op not in _WRITES or any(not value.counts.clean for value in inputs if value.slot != "input.0"):
        return False
    target = [value for value in inputs if value.slot == "input.0"]
    if any(not value.counts.clean for value in target):
        return all(value.state == "constant" for value in target)
    return all(value.state == "blank" for value in target) and any(value != value for value in constants or ())


def _must_be_explained(op: str, value: Value) -> bool:
    """Tell whether an input was non-finite before any recorded call, and is no mask."""
    if value.state == "constant":
        return value.counts.nan > 0
    if value.state == "unknown":
        chosen = op in _CHOOSES and value.counts.nan == 0 and value.counts.elements == 1
        return not (chosen or is_mask(value.counts))  # a number that stands where there is no other is meant
    if value.state == "parameter":  # one that is added may be a mask; a weight is none
        return not (op in _ADDS and is_mask(value.counts))
    return value.state == "blank"


def _is_meant(
    op: str, made: Counts, dirty: Sequence[Value], inputs: Sequence[Value], constants: tuple[float, ...]
) -> bool:
    """Tell whether all non-finite values are infinities that the call was asked for."""
    up = any(value.counts.posinf for value in dirty) or float("inf") in constants
    down = any(value.counts.neginf for value in dirty) or float("-inf") in constants
    if op in _TURNS:
        up = down = up or down
    if not down and op in _ADDS:
        down = any(value.counts.low for value in inputs)
    return (up or not made.posinf) and (down or not made.neginf)
