"""The functions on the way to a call that two runs have in two forms: two versions of a library, an edited script."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from numscope.compare.cause.recorded import RecordedCall
from numscope.compare.cause.sources import Definition, Place, ProgramSources
from numscope.core.report import Origin

_SHOWN = 3  # changed lines of each side that a link shows


@dataclass(frozen=True)
class Change:
    """A function that the two runs have in two forms, with the changed lines nearest to the one that runs."""

    place: Place
    name: str
    near: tuple[str, ...]
    lines: tuple[str, ...]  # of a diff: the reference's begin with -, the target's with +

    @property
    def link(self) -> str:
        """The changed lines nearest to the one that runs, as a link of a chain."""
        parts = [line for sign in "+-" for line in [x for x in self.near if x.startswith(sign)][:_SHOWN]]
        return f"{self.name}, {self.place}, is another than the reference's: {' '.join(f'`{part}`' for part in parts)}"


def changes(
    origin: Origin,
    call: RecordedCall | None,
    other: RecordedCall | None,
    target: ProgramSources,
    reference: ProgramSources,
) -> Iterator[Change]:
    """Yield the functions of the stack that differ, from the inside; else what the module or optimizer is made by."""
    own = {frame.function: frame.place for frame in (call.frames if call is not None else ())}
    theirs = {frame.function: frame.place for frame in (other.frames if other is not None else ())}
    found = False
    for name in reversed(list(own or theirs)):
        mine = target.around(own[name]) if name in own else None
        others = reference.around(theirs[name]) if name in theirs else None
        line = own[name].line if name in own else theirs[name].line
        change = _change(mine or _named(target, others), others or _named(reference, mine), line, name in own)
        if change is not None:
            found = True
            yield change
    is_optimizer = origin.kind == "optimizer"
    if found and not is_optimizer:
        return
    kind = origin.call.split(".")[1] if is_optimizer else target.class_of(origin.module)
    others_of = {method.node.name: method for method in reference.methods(kind)}
    for method in target.methods(kind):
        if is_optimizer or method.node.name == "__init__":
            change = _change(method, others_of.get(method.node.name), 0, own=True)
            if change is not None:
                yield change


def _named(sources: ProgramSources, like: Definition | None) -> Definition | None:
    """Return the one function of the same name and file name as another run's."""
    if like is None:
        return None
    same = [one for one in sources.functions() if one.node.name == like.node.name and _file(one) == _file(like)]
    return same[0] if len(same) == 1 else None


def _file(definition: Definition) -> str:
    return definition.file.replace("\\", "/").rpartition("/")[2]


def _change(target: Definition | None, reference: Definition | None, line: int, own: bool) -> Change | None:
    """Return how two forms of a function differ; `line` is the one that runs, in the target's file if `own`."""
    if target is None or reference is None:
        return None
    before, after = reference.lines(), target.lines()
    best: tuple[int, int, list[str]] | None = None
    every: list[str] = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, _plain(before), _plain(after), autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        lines = [f"- {one}" for one in _plain(before[i:j]) if one] + [f"+ {one}" for one in _plain(after[k:m]) if one]
        if not lines:
            continue
        every += lines
        first, last, side = (k, m, target) if own else (i, j, reference)
        begin = side.place().line + first
        distance = max(begin - line, line - (begin + last - first - 1), 0)
        if best is None or distance < best[0]:
            best = (distance, target.place().line + k, lines)
    if best is None:
        return None
    return Change(Place(target.file, best[1]), target.node.name, tuple(best[2]), tuple(every))


def _plain(lines: list[str]) -> list[str]:
    return [" ".join(line.split()) for line in lines]
