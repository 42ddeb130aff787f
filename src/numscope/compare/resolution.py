"""How small a fault would have shown: the resolution of a comparison.

A call is called wrong where its result is off by more than rounding explains; that limit is its resolution. Deep in a
bfloat16 model it is coarse, and a small fault hides there: an answer that finds nothing says how small.

Where rounding may be as large as the result (a limit of 1 or more) a call cannot be judged at all; it is counted apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.slots import OUTPUT, SlotPairs
from numscope.compare.judge.walk import Judgement
from numscope.compare.load.side import Floats, Ints, Side
from numscope.compare.measure.measures import Measures
from numscope.core.json_value import JsonObject

TYPICAL_FAULT = 1e-3  # relative: a wrong eps, a cast at another place, GELU by tanh in bfloat16
_MOST_MODULES = 64  # that the report lists
_SIZES = 256.0  # of limits that are told apart between two powers of two


@dataclass(frozen=True)
class Coarsest:
    """The call of a part of the model where a fault could hide best."""

    part: str  # the module path up to its first number: blocks.9
    phase: str
    limit: float
    call: str
    dtype: str
    came_in: float


@dataclass(frozen=True)
class StepResolution:
    """The limits of one step of one rank, or of several: few numbers, however many calls there are."""

    limits: tuple[tuple[float, int], ...] = ()  # of the calls that were judged, below 1: to 8 bits, and how many
    fine: float = 0.0  # the largest that shows a typical fault
    hidden: int = 0  # calls that cannot be judged: rounding may be as large as their results
    coarsest: tuple[Coarsest, ...] = ()  # by part of the model, in the order of running


def joined(steps: Iterable[StepResolution]) -> StepResolution:
    """Return the limits of several steps as those of one."""
    counts: Counter[float] = Counter()
    parts: dict[tuple[str, str], Coarsest] = {}
    fine, hidden = 0.0, 0
    for step in steps:
        for limit, count in step.limits:
            counts[limit] += count
        fine, hidden = max(fine, step.fine), hidden + step.hidden
        for one in step.coarsest:
            seen = parts.get((one.part, one.phase))
            if seen is None or one.limit > seen.limit:
                parts[one.part, one.phase] = one
    return StepResolution(tuple(sorted(counts.items())), fine, hidden, tuple(parts.values()))


def _counted(limits: Floats) -> tuple[tuple[float, int], ...]:
    """Return how many limits there are of each size, to 8 bits of their mantissa."""
    fraction, exponent = np.frexp(limits)
    values, counts = np.unique(np.ldexp(np.round(fraction * _SIZES) / _SIZES, exponent), return_counts=True)
    return tuple(zip(values.tolist(), counts.tolist()))


def _median(limits: Sequence[tuple[float, int]]) -> float:
    """Return the median of numbers, given in order with how many there are of each."""
    total = np.cumsum([count for _, count in limits])
    middle = np.searchsorted(total, [(total[-1] - 1) // 2, total[-1] // 2], side="right")
    return float(np.mean([limits[at][0] for at in middle.tolist()]))


def call_limits(
    alignment: Alignment, slots: SlotPairs, measures: Measures, judgement: Judgement, inner: Ints
) -> Floats:
    """Return the limit of each pair of calls whose results were held against it; NaN for all others.

    `inner`: how many inner calls each has; those with any are judged by them.
    """
    compared = np.zeros(len(alignment.target), np.bool_)
    compared[slots.pair[(slots.role == OUTPUT) & measures.compared]] = True
    judged = compared & judgement.corresponds & (inner == 0) & ~np.isnan(judgement.errors.error_out)
    return np.where(judged, judgement.limits, np.nan)


def step_resolution(
    a: Side, alignment: Alignment, slots: SlotPairs, limits: Floats, judgement: Judgement
) -> StepResolution:
    """Return the limits of one step of one rank."""
    words, calls, rows = a.book.words, a.calls, alignment.target
    judged = np.isfinite(limits) & ~np.isin(calls.kind[rows], [a.book.code("optimizer"), a.book.code("data")])
    hidden = judged & (limits >= 1.0)
    judged &= ~hidden
    pairs = np.flatnonzero(judged)
    key = calls.module[rows[pairs]] * (len(words) + 1) + calls.phase[rows[pairs]]
    order = np.lexsort((limits[pairs], key))
    last = np.flatnonzero(np.append(np.diff(key[order]) != 0, True)[: len(order)])
    worst: dict[tuple[str, int], int] = {}  # by part and phase: the pair of the largest limit
    parts: dict[int, str] = {}
    chosen = np.sort(pairs[order[last]])
    for pair, limit, module, phase in zip(
        chosen.tolist(),
        limits[chosen].tolist(),
        calls.module[rows[chosen]].tolist(),
        calls.phase[rows[chosen]].tolist(),
    ):
        part = parts.get(module)
        if part is None:
            part = parts[module] = part_of(words[module] if module >= 0 else "")
        seen = worst.get((part, phase))
        if seen is None or limit > limits[seen]:
            worst[part, phase] = pair
    found = []
    for (part, phase), pair in worst.items():
        dtype, came_in = _dtype(a, slots, pair), float(np.nan_to_num(judgement.errors.error_in[pair]))
        name = calls.name(int(rows[pair]))
        found.append(Coarsest(part, words[phase], float(limits[pair]), name, dtype, came_in))
    fine = limits[pairs][limits[pairs] <= TYPICAL_FAULT]
    return StepResolution(_counted(limits[pairs]), float(fine.max(initial=0.0)), int(hidden.sum()), tuple(found))


def part_of(module: str) -> str:
    """Return a module path up to its first number: `blocks.9` is that of `blocks.9.mlp.up`."""
    found = re.match(r"(?:[^.]+\.)*?\d+(?=\.|$)", module)
    return found[0] if found else module


def _dtype(a: Side, slots: SlotPairs, pair: int) -> str:
    first, end = np.searchsorted(slots.pair, (pair, pair + 1))
    made = [row for row in range(first, end) if slots.role[row] == OUTPUT]
    return a.book.words[a.tensors.dtype[slots.a[made[0]]]] if made else ""


def report_of(found: StepResolution, verdict_is_right: bool) -> JsonObject | None:
    """Return the resolution as the report has it; None where no call was held against a limit."""
    if not found.limits:
        return None
    worst = max(found.coarsest, key=lambda one: one.limit)
    report: JsonObject = {
        "largest": worst.limit,
        "call": worst.call,
        "typical": min(_median(found.limits), worst.limit),
        "hidden": found.hidden,
        "modules": [
            {"module": one.part, "phase": one.phase, "largest": one.limit, "call": one.call}
            for one in found.coarsest[:_MOST_MODULES]
        ],
    }
    if verdict_is_right:
        report["sentence"] = sentence(found)
    return report


def sentence(found: StepResolution) -> str:
    """Return how small a fault would have shown, where it could hide, and what sharpens that."""
    coarse = [one for one in found.coarsest if one.limit > TYPICAL_FAULT]
    if not coarse:
        text = f"a wrong result above {found.fine:.1g} of a call's output would show"
    else:
        worst = max(coarse, key=lambda one: one.limit)
        why = f"{worst.dtype}, {worst.came_in:.1g} came in" if worst.came_in > 0 else worst.dtype
        only = f"only above {worst.limit:.2g} ({why})"
        if found.fine:
            text = f"a wrong result above {found.fine:.1g} of a call's output would show; "
            text += f"in {_places(coarse)} {only}"
        else:
            text = f"a wrong result would show only above {_median(found.limits):.1g} of a call's output; "
            text += f"in {worst.call} {only}"
        text += "; a run in float32 sees more there, and `numscope bisect` feeds each call the reference's inputs"
    if found.hidden:
        text += f"; {found.hidden} calls cannot be judged: rounding may be as large as their results"
    return text


def _places(coarse: list[Coarsest]) -> str:
    """Return the parts of the model in words: `blocks.9–11, head` and, where it is so, in backward alone."""
    phases = {one.phase for one in coarse}
    names = list(dict.fromkeys(one.part for one in coarse))
    text: list[str] = []
    run: list[tuple[str, int]] = []
    for name in [*names, ""]:
        stem, _, last = name.rpartition(".")
        number = int(last) if last.isdecimal() else -1
        if run and (number < 0 or run[-1] != (stem, number - 1)):
            (first_stem, first), (_, end) = run[0], run[-1]
            head = f"{first_stem}." if first_stem else ""
            text.append(f"{head}{first}" if first == end else f"{head}{first}–{end}")
            run = []
        if number >= 0:
            run.append((stem, number))
        elif name:
            text.append(name)
    if "" in names:
        text.append("calls outside of modules")
    more = f" and {len(text) - 3} more" if len(text) > 3 else ""
    only = f"the {next(iter(phases))} of " if len(phases) == 1 and phases != {"forward"} else ""
    return f"{only}{', '.join(text[:3])}{more}"
