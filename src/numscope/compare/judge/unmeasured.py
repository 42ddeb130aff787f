"""What is known of a step of which nothing was measured: arguments, shapes, dtypes, and which calls are there at all.

Runs of keep="structure" have no numbers to judge, but where they are not built alike is where to look first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import PurePath
from typing import Any

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.arguments import Difference
from numscope.compare.align.slots import SlotPairs
from numscope.compare.judge.call_titles import title
from numscope.compare.load.side import Side
from numscope.compare.load.sources import Sources
from numscope.core.report import Source

_TOLD = 20  # differences that are put into words; all are counted
WORDS = {
    "arguments": ("differs in its arguments", "differ in their arguments"),
    "unmatched": ("is on one side only", "are on one side only"),
    "shapes": ("differs in a shape", "differ in a shape"),
    "dtypes": ("differs in a dtype", "differ in a dtype"),
}


@dataclass(frozen=True)
class Unlike:
    """One call that is not the same on both sides, whatever it computes."""

    what: str  # a key of WORDS
    call: str
    reference_call: str
    module: str
    step: int
    rank: int
    reason: str
    source: Source | None


@dataclass(frozen=True)
class Known:
    """How many calls of a step differ in what, and the first of them."""

    counts: dict[str, int]
    first: tuple[Unlike, ...]


def known(
    a: Side,
    b: Side,
    alignment: Alignment,
    slots: SlotPairs,
    differences: dict[int, list[Difference]],
    sources: tuple[Sources, Sources],
) -> Known:
    """Return in what the two sides of a step differ, in the order of running."""
    found = [(float(alignment.target[pair]), "arguments", pair, _arguments(told)) for pair, told in differences.items()]
    found += [(float(row), "unmatched", int(row), "only the target has this call") for row in alignment.alone_target]
    partner = np.full(len(b.calls), -1)
    partner[alignment.reference] = alignment.target
    before = np.maximum.accumulate(partner) if len(partner) else partner
    for row in alignment.alone_reference.tolist():
        found.append((float(before[row]) + 0.5, "unmatched", -1 - row, "only the reference has this call"))
    found += _tensors(a, b, alignment, slots)
    found.sort()
    counts: dict[str, int] = dict.fromkeys(WORDS, 0)
    for _, what, _, _ in found:
        counts[what] += 1
    told = (_unlike(a, b, alignment, sources, what, row, text) for _, what, row, text in found[:_TOLD])
    return Known(counts, tuple(told))


def _arguments(told: list[Difference]) -> str:
    return "; ".join(f"argument {difference}" for difference in told[:3])


def _tensors(a: Side, b: Side, alignment: Alignment, slots: SlotPairs) -> Iterator[tuple[float, str, int, str]]:
    """Yield the pairs without inner calls that hold tensors of other shapes or dtypes; of each the first slot."""
    words = a.book.words
    inner = (a.calls.children[alignment.target] == 0)[slots.pair] if len(slots.pair) else np.zeros(0, np.bool_)
    for what, mine, theirs, form in (
        ("shapes", a.tensors.shape[slots.a], b.tensors.shape[slots.b], "[{}]"),
        ("dtypes", a.tensors.dtype[slots.a], b.tensors.dtype[slots.b], "{}"),
    ):
        rows = np.flatnonzero((mine != theirs) & inner)
        for row in rows[np.unique(slots.pair[rows], return_index=True)[1]].tolist():
            pair = int(slots.pair[row])
            one, other = form.format(words[mine[row]]), form.format(words[theirs[row]])
            text = f"{words[slots.slot[row]]} is {one}, the reference's {other}"
            yield float(alignment.target[pair]), what, pair, text


def _unlike(
    a: Side, b: Side, alignment: Alignment, sources: tuple[Sources, Sources], what: str, place: int, text: str
) -> Unlike:
    if what != "unmatched":
        row, other = int(alignment.target[place]), int(alignment.reference[place])
    else:
        row, other = (place, -1) if place >= 0 else (-1, -1 - place)
    side, at, own = (a, row, sources[0]) if row >= 0 else (b, other, sources[1])
    source = own.of(int(side.calls.stack[at]))
    where = f"; {PurePath(source.file).name}:{source.line}" if source is not None else ""
    module = side.book.words[side.calls.module[at]] if side.calls.module[at] >= 0 else ""
    names = (a.calls.name(row) if row >= 0 else "", b.calls.name(other) if other >= 0 else "")
    return Unlike(what, *names, module, a.step, a.rank, f"{title(side, at)}: {text}{where}", source)


def together(steps: Iterable[Known | None]) -> Known:
    """Return what is known of several steps."""
    parts = [step for step in steps if step is not None]
    counts = {what: sum(part.counts[what] for part in parts) for what in WORDS}
    return Known(counts, tuple(islice((one for part in parts for one in part.first), _TOLD)))


def sentence(found: Known) -> str:
    """Return what is known in words: how many calls differ in what, and where to look first."""
    told: list[str] = []
    for what, count in found.counts.items():
        noun = "" if told else "call " if count == 1 else "calls "
        if count:
            told.append(f"{count} {noun}{WORDS[what][count > 1]}")
    if not told:
        return "the calls, their arguments, shapes and dtypes are the same"
    return f"{', '.join(told)}; look first at {found.first[0].reason}"


def details(found: Known) -> dict[str, Any]:
    """Return what is known as the report has it."""
    return {**found.counts, "first": [asdict(one) for one in found.first]}
