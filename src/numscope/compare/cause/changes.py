"""The functions on the way to a call that two runs have in two forms: two versions of a library, an edited script."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from numscope.compare.cause.recorded import RecordedCall
from numscope.compare.cause.sources import Definition, NamesOfBoth, Place, ProgramSources
from numscope.compare.cause.statements import Statement, feeding, statements
from numscope.core.report import Origin

_SHOWN = 3  # changed statements of each side that a link shows


@dataclass(frozen=True)
class Change:
    """A function that the two runs have in two forms, with the changed statements that matter most for the one that runs."""

    place: Place
    name: str
    near: tuple[str, ...]
    lines: tuple[str, ...]  # of a diff: the reference's begin with -, the target's with +
    feeds: bool  # what runs depends on what is changed

    @property
    def link(self) -> str:
        """The changed statements, as a link of a chain."""
        parts = [line for sign in "+-" for line in [x for x in self.near if x.startswith(sign)][:_SHOWN]]
        return f"{self.name}, {self.place}, is another than the reference's: {' '.join(f'`{part}`' for part in parts)}"


def changes(
    origin: Origin,
    call: RecordedCall | None,
    other: RecordedCall | None,
    target: ProgramSources,
    reference: ProgramSources,
) -> list[Change]:
    """Return the functions of the stack that differ, from the inside; else what the module or optimizer is made by.

    Those come first in which what is changed feeds what runs.
    """
    is_optimizer = origin.kind == "optimizer"
    found: list[Change | None] = []
    if not is_optimizer:
        for both in _on_the_stacks(call, other, target, reference):
            definition = both.target if both.is_own else both.reference
            found.append(change_of(both.target, both.reference, RunningLine(definition, both.line, both.is_own)))
    if not any(found):
        kind = target.class_of(origin.module)
        kinds = NamesOfBoth(kind, kind)
        if is_optimizer:
            kinds = NamesOfBoth(class_of_call(origin.call), class_of_call(other.name if other else origin.call))
        found += _of_methods(kinds, target, reference, ("step",) if is_optimizer else ("__init__",))
        if is_optimizer and kinds.target == kinds.reference:
            found += _of_methods(kinds, target, reference, ())
            for both in _on_the_stacks(call, other, target, reference):
                found.append(change_of(both.target, both.reference, None))
    distinct = {one.place: one for one in found if one is not None}
    return sorted(distinct.values(), key=lambda one: not one.feeds)


def class_of_call(name: str) -> str:
    """Return the class, or the function, in a call's name: `Optimizer.AdamW.step` is AdamW's."""
    return name.split(".")[1]


def _of_methods(
    kinds: NamesOfBoth, target: ProgramSources, reference: ProgramSources, names: Sequence[str]
) -> Iterator[Change | None]:
    """Yield how the methods of a class differ, those of these names, or all; of two classes, their own."""
    others_of = {method.name: method for method in reference.methods(kinds.reference)}
    for method in target.methods(kinds.target):
        if names and method.node.name not in names:
            continue
        holder = method.name.rpartition(".")[0]
        others = others_of.get(f"{kinds.reference}.{method.node.name}" if holder == kinds.target else method.name)
        if others is not None:
            yield change_of(method, others, None)


class _Both(NamedTuple):
    """A function of a stack in the forms of the two runs, and the line that runs: of the target's form, if `is_own`."""

    target: Definition
    reference: Definition
    line: int
    is_own: bool


def _on_the_stacks(
    call: RecordedCall | None, other: RecordedCall | None, target: ProgramSources, reference: ProgramSources
) -> Iterator[_Both]:
    """Yield the functions of a call's stack from the inside, each with the other run's of the same name."""
    stack, stack_r = (one.frames[::-1] if one is not None else () for one in (call, other))
    told = set[str]()
    for depth, frame in enumerate(stack or stack_r):
        own, theirs = (target, reference) if stack else (reference, target)
        mine = own.around(frame.place)
        if mine is None or mine.name in told:
            continue
        told.add(mine.name)
        others = theirs.like(mine)
        if others is None and stack and depth < len(stack_r) and stack_r[depth].function == frame.function:
            others = theirs.around(stack_r[depth].place)
        if others is not None:
            pair = (mine, others) if stack else (others, mine)
            yield _Both(*pair, frame.place.line, bool(stack))


class _Hunk(NamedTuple):
    """Statements that one form has in place of the other's."""

    target: tuple[Statement, ...]
    reference: tuple[Statement, ...]
    feeds: bool
    distance: int

    @property
    def lines(self) -> list[str]:
        return [f"- {one.code}" for one in self.reference] + [f"+ {one.code}" for one in self.target]


class RunningLine(NamedTuple):
    """The line of one of two forms of a function that runs."""

    definition: Definition
    line: int
    is_target: bool


def change_of(target: Definition, reference: Definition, runs: RunningLine | None) -> Change | None:
    """Return how two forms of a function differ, first where it matters for the line that runs."""
    after, before = statements(target), statements(reference)
    older, newer = ([one.text for one in side] for side in (before, after))
    needed = feeding(runs.definition, runs.line) if runs is not None else frozenset()
    hunks: list[_Hunk] = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, older, newer, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        both = after[k:m], before[i:j]
        feeds = distance = 0
        if runs is not None:
            side, place, stop = (after, k, m) if runs.is_target else (before, i, j)
            own = side[place:stop]
            begin = own[0].line if own else side[min(place, len(side) - 1)].line
            end = own[-1].last if own else begin
            distance = max(begin - runs.line, runs.line - end, 0)
            feeds = not distance or any(_matters(one, needed) for part in both for one in part)
        hunks.append(_Hunk(*both, bool(feeds), distance))
    if not hunks:
        return None
    ranked = sorted(hunks, key=lambda one: (not one.feeds, one.distance))
    near = [one for one in ranked if one.feeds or runs is None][:2] or ranked[:1]
    first = near[0]
    line = first.target[0].line if first.target else target.place().line
    every = tuple(line for one in hunks for line in one.lines)
    return Change(
        Place(target.file, line), target.node.name, tuple(x for one in near for x in one.lines), every, first.feeds
    )


def _matters(statement: Statement, needed: frozenset[str]) -> bool:
    return bool(statement.writes & needed) or (statement.tests and bool(statement.reads & needed))
