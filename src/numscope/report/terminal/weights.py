"""The answer of `numscope weights` on one screen: the verdict, what is wrong, the conversions, what is missing.

DIVERGED  27 of 29 tensors of B are in A; 2 are wrong

  swapped   model.layers.1.self_attn.q_proj.weight
            swapped with model.layers.2.self_attn.q_proj.weight: each has the other's values
"""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter, defaultdict
from typing import TextIO

from numscope.core.language.chinese import say, translated
from numscope.core.untrusted import shown as safely_shown
from numscope.report.terminal.comparison import Paint
from numscope.weights.matching.names import read
from numscope.weights.pair import Pair, Weights

_COLOURS = {"identical": "32", "equivalent": "32", "diverged": "31", "incomplete": "33"}
_NAMES = 5  # missing or extra tensors that are listed


def print_weights(
    answer: Weights, stream: TextIO, *, top: int = 10, explain: bool = False, colour: bool | None = None
) -> None:
    """Print the answer, at most one screen of it unless every pair is to be explained."""
    width = min(max(shutil.get_terminal_size((100, 40)).columns, 60), 140)
    for line in lines(answer, Paint(stream, colour), width, top, explain):
        print(safely_shown(line, coloured=True), file=stream)


def text(answer: Weights, width: int = 100, top: int = 10) -> str:
    """Return the answer as plain text."""
    return "\n".join(lines(answer, Paint(None, colour=False), width, top))


def lines(answer: Weights, paint: Paint, width: int = 100, top: int = 10, explain: bool = False) -> list[str]:
    """Return the lines of the answer."""
    badge = paint(answer.verdict.upper(), f"{_COLOURS[answer.verdict]};1")
    shown = [f"{badge}  {_headline(answer)}", ""]
    groups = _groups([pair for pair in answer.pairs if pair.fault])
    for group in groups[:top]:
        shown += _group(group, paint, width)
    if groups[top:]:
        more = "… {0} more kinds: --top {1} shows all, --json and --csv have them"
        shown.append(f"  {say(more, len(groups) - top, len(groups))}")
    shown += _relations(answer, width)
    for words, names in (("missing in A: {0}", answer.missing), ("extra in A: {0}", answer.extra)):
        if names:
            more = f" (+{len(names) - _NAMES})" if names[_NAMES:] else ""
            shown += _wrapped(say(words, ", ".join(names[:_NAMES]) + more), width)
    if answer.unjudged:
        sentence = "of these, each model makes {0} anew: they change no verdict"
        shown += _wrapped(say(sentence, len(answer.unjudged)), width)
    if explain:
        shown += ["", *_explained(answer)]
    return shown


def _headline(answer: Weights) -> str:
    right = sum(len(pair.b) for pair in answer.pairs if pair.verdict in ("identical", "equivalent"))
    total = sum(len(pair.b) for pair in answer.pairs) + len(answer.missing)
    told = say("{0} of {1} tensors of B are in A", right, total)
    wrong = sum(len(pair.b) for pair in answer.wrong)
    if wrong:
        told += f"; {say('{0} is wrong' if wrong == 1 else '{0} are wrong', wrong)}"
    worst = max(
        (pair.relative for pair in answer.pairs if pair.verdict == "equivalent" and pair.relative), default=None
    )
    if worst and not wrong:
        told += f", {say('the largest difference {0} of the norm', f'{worst:.1e}')}"
    return told


def _groups(pairs: list[Pair]) -> list[list[Pair]]:
    """Return faults of the same kind in the same role of several layers together, the worse kinds first."""
    found: dict[tuple[object, ...], list[Pair]] = defaultdict(list)
    for pair in pairs:
        found[pair.verdict != "diverged", pair.fault, read((pair.b or pair.a)[0]).role].append(pair)
    return [group for _, group in sorted(found.items(), key=lambda item: item[0][0] is True)]


def _group(group: list[Pair], paint: Paint, width: int) -> list[str]:
    first = group[0]
    label = f"{first.fault}".ljust(15)
    names = ", ".join(first.a or first.b)
    count = f"  {say('(and {0} more like it)', len(group) - 1)}" if group[1:] else ""
    colour = "31;1" if first.verdict == "diverged" else "33"
    shown = [f"  {paint(label, colour)} {names[: width * 2]}{count}"]
    repair = f"; {say('to repair: {0}', translated(first.repair))}" if first.repair else ""
    sentence = translated(first.reason) + repair
    return [*shown, *_wrapped(sentence, width, 18), ""]


def _relations(answer: Weights, width: int) -> list[str]:
    """Return how many pairs there are of each relation, with the first reason of each conversion."""
    right = [pair for pair in answer.pairs if pair.verdict in ("identical", "equivalent")]
    counts = Counter(pair.relation for pair in right)
    shown: list[str] = []
    for relation, count in counts.most_common():
        example = next(pair for pair in right if pair.relation == relation)
        reason = "" if relation == "equal" and example.verdict == "identical" else f"  {example.reason}"
        shown.append(f"  {count:>6} {relation:<12}{reason}"[:width])
    return shown


def _wrapped(sentence: str, width: int, indent: int = 2) -> list[str]:
    pad = " " * indent
    return textwrap.wrap(sentence, width, initial_indent=pad, subsequent_indent=pad, break_long_words=False)


def _explained(answer: Weights) -> list[str]:
    shown = []
    for pair in answer.pairs:
        shown.append(f"  {', '.join(pair.a)}  {pair.relation}  {', '.join(pair.b)}")
        shown += [f"    {sentence}" for sentence in (*pair.explain, pair.reason)]
    return shown
