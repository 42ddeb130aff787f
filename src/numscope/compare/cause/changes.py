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
    """A function that the two runs have in two forms."""

    place: Place
    name: str
    lines: tuple[str, ...]  # of a diff: the reference's begin with -, the target's with +

    @property
    def link(self) -> str:
        """The first changed lines, as a link of a chain."""
        parts = [line for sign in "+-" for line in [x for x in self.lines if x.startswith(sign)][:_SHOWN]]
        return f"{self.name}, {self.place}, is another than the reference's: {' '.join(f'`{part}`' for part in parts)}"


def changes(
    origin: Origin,
    call: RecordedCall | None,
    other: RecordedCall | None,
    target: ProgramSources,
    reference: ProgramSources,
) -> Iterator[Change]:
    """Yield the functions on the way that differ: those of the stack from the inside, then constructors."""
    told = set[str]()
    theirs = {}
    for frame in other.frames if other is not None else ():
        theirs[frame.function] = reference.around(frame.place)
    mine = {}
    for frame in call.frames if call is not None else ():
        mine[frame.function] = target.around(frame.place)
    for name in reversed(list(mine or theirs)):
        own = mine.get(name) or _named(target, theirs.get(name))
        others = theirs.get(name) or _named(reference, mine.get(name))
        change = _change(own, others)
        if change is not None and change.name not in told:
            told.add(change.name)
            yield change
    names = [target.class_of(origin.module)] if origin.kind != "optimizer" else [origin.call.split(".")[1]]
    for name in names:
        others_of = {method.node.name: method for method in reference.methods(name)}
        for method in target.methods(name):
            change = _change(method, others_of.get(method.node.name))
            if change is not None and (origin.kind == "optimizer" or method.node.name == "__init__"):
                yield change


def _named(sources: ProgramSources, like: Definition | None) -> Definition | None:
    """Return the one function of the same name and file name as another run's."""
    if like is None:
        return None
    found = [
        one for one in sources.functions() if one.node.name == like.node.name and _file(one.file) == _file(like.file)
    ]
    return found[0] if len(found) == 1 else None


def _file(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]


def _change(own: Definition | None, other: Definition | None) -> Change | None:
    if own is None or other is None:
        return None
    diff = difflib.unified_diff(other.lines(), own.lines(), lineterm="", n=0)
    lines: list[str] = []
    first = own.place()
    for line in list(diff)[2:]:
        if line.startswith("@@"):
            if not lines:
                begin = line.split("+")[1].split(" ")[0].split(",")[0]
                first = Place(own.file, own.offset + own.node.lineno + int(begin) - 1)
        elif line[1:].strip() and not line[1:].strip().startswith(("#", '"""')):
            lines.append(line[0] + " " + " ".join(line[1:].split()))
    return Change(first, own.node.name, tuple(lines)) if lines else None
