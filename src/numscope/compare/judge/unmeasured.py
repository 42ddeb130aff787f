"""How two steps differ in structure, where nothing was measured: arguments, shapes, dtypes, and which calls are there at all.

Runs of keep="structure" have no numbers to judge, but where they are not built alike is where to look first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import PurePath
from typing import Literal

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.arguments import Difference
from numscope.compare.align.slots import SlotPairs
from numscope.compare.judge.call_titles import title
from numscope.compare.judge.correspondence import Differences
from numscope.compare.load.side import Side
from numscope.compare.load.sources import Sources
from numscope.core.report import Source

Aspect = Literal["arguments", "unmatched", "shapes", "dtypes"]

_MOST_SENTENCES = 20  # differences that are put into words; all are counted
WORDS: dict[Aspect, tuple[str, str]] = {
    "arguments": ("differs in its arguments", "differ in their arguments"),
    "unmatched": ("is on one side only", "are on one side only"),
    "shapes": ("differs in a shape", "differ in a shape"),
    "dtypes": ("differs in a dtype", "differ in a dtype"),
}


@dataclass(frozen=True)
class StructureDifference:
    """One call that is not the same on both sides, whatever it computes."""

    aspect: Aspect
    call: str
    reference_call: str
    module: str
    step: int
    rank: int
    reason: str
    source: Source | None


@dataclass(frozen=True)
class StructureDifferences:
    """How many calls of a step differ in structure, and the first of them."""

    counts: dict[Aspect, int]
    first: tuple[StructureDifference, ...]


@dataclass(frozen=True, order=True)
class _Found:
    """A difference before it is put into words, in the order of running."""

    order: float
    aspect: Aspect
    target: int  # row, -1 for none
    reference: int
    text: str


def structure_differences(
    a: Side,
    b: Side,
    alignment: Alignment,
    slots: SlotPairs,
    differing: Differences,
    sources: tuple[Sources, Sources],
) -> StructureDifferences:
    """Return how the two sides of a step differ in structure, in the order of running."""
    found = [*_in_arguments(alignment, differing), *_unmatched(b, alignment), *_in_tensors(a, b, alignment, slots)]
    found.sort()
    counts: dict[Aspect, int] = dict.fromkeys(WORDS, 0)
    for one in found:
        counts[one.aspect] += 1
    return StructureDifferences(counts, tuple(_in_words(a, b, sources, one) for one in found[:_MOST_SENTENCES]))


def _in_arguments(alignment: Alignment, differing: Differences) -> Iterator[_Found]:
    for pair, differences in differing.items():
        target, reference = int(alignment.target[pair]), int(alignment.reference[pair])
        yield _Found(float(target), "arguments", target, reference, _arguments(differences))


def _arguments(differences: list[Difference]) -> str:
    return "; ".join(f"argument {difference}" for difference in differences[:3])


def _unmatched(b: Side, alignment: Alignment) -> Iterator[_Found]:
    for row in alignment.alone_target.tolist():
        yield _Found(float(row), "unmatched", row, -1, "only the target has this call")
    partner = np.full(len(b.calls), -1)
    partner[alignment.reference] = alignment.target
    before = np.maximum.accumulate(partner) if len(partner) else partner
    for row in alignment.alone_reference.tolist():
        yield _Found(float(before[row]) + 0.5, "unmatched", -1, row, "only the reference has this call")


def _in_tensors(a: Side, b: Side, alignment: Alignment, slots: SlotPairs) -> Iterator[_Found]:
    """Yield the pairs without inner calls that hold tensors of other shapes or dtypes; of each the first slot."""
    words = a.book.words
    inner = (a.calls.children[alignment.target] == 0)[slots.pair] if len(slots.pair) else np.zeros(0, np.bool_)
    columns: tuple[tuple[Aspect, str], ...] = (("shapes", "[{}]"), ("dtypes", "{}"))
    for aspect, form in columns:
        own, others = (
            (a.tensors.shape[slots.a], b.tensors.shape[slots.b])
            if aspect == "shapes"
            else (a.tensors.dtype[slots.a], b.tensors.dtype[slots.b])
        )
        rows = np.flatnonzero((own != others) & inner)
        _, first = np.unique(slots.pair[rows], return_index=True)
        for row in rows[first].tolist():
            target, reference = int(alignment.target[slots.pair[row]]), int(alignment.reference[slots.pair[row]])
            one, other = form.format(words[own[row]]), form.format(words[others[row]])
            text = f"{words[slots.slot[row]]} is {one}, the reference's {other}"
            yield _Found(float(target), aspect, target, reference, text)


def _in_words(a: Side, b: Side, sources: tuple[Sources, Sources], found: _Found) -> StructureDifference:
    of_target, of_reference = sources
    target, reference = found.target, found.reference
    side, row, own = (a, target, of_target) if target >= 0 else (b, reference, of_reference)
    source = own.of(int(side.calls.stack[row]))
    where = f"; {PurePath(source.file).name}:{source.line}" if source is not None else ""
    return StructureDifference(
        aspect=found.aspect,
        call=a.calls.name(target) if target >= 0 else "",
        reference_call=b.calls.name(reference) if reference >= 0 else "",
        module=side.book.words[side.calls.module[row]] if side.calls.module[row] >= 0 else "",
        step=a.step,
        rank=a.rank,
        reason=f"{title(side, row)}: {found.text}{where}",
        source=source,
    )


def merged(steps: Iterable[StructureDifferences | None]) -> StructureDifferences:
    """Return the differences of several steps as one."""
    parts = [step for step in steps if step is not None]
    counts = {aspect: sum(part.counts[aspect] for part in parts) for aspect in WORDS}
    first = islice((one for part in parts for one in part.first), _MOST_SENTENCES)
    return StructureDifferences(counts, tuple(first))


def sentence(found: StructureDifferences) -> str:
    """Return the counts of differing calls by aspect, and the first of each."""
    parts: list[str] = []
    for aspect, count in found.counts.items():
        noun = "" if parts else "call " if count == 1 else "calls "
        singular, plural = WORDS[aspect]
        if count:
            parts.append(f"{count} {noun}{plural if count > 1 else singular}")
    if not parts:
        return "the calls, their arguments, shapes and dtypes are the same"
    return f"{', '.join(parts)}; look first at {next(iter(found.first)).reason}"


def details(found: StructureDifferences) -> dict[str, object]:
    """Return the differences as the report has them."""
    counts: dict[str, object] = dict(found.counts.items())
    return counts | {"first": [asdict(one) for one in found.first]}
