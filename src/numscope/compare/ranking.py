"""Ranks the suspects of all steps and ranks: one cause is one suspect, with a count of the places where it shows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from numscope.compare.steps import PlacedOrigin
from numscope.core.report import Origin

_FIRST = {"data": 0, "parameter": 1}
_MOST = 50  # suspects that a report lists
_NUMBER = re.compile(r"\d+")


class _Cause(NamedTuple):
    """The key that suspects of one cause share: a line of code and an operator, or a name but for its numbers."""

    kind: str
    name: str
    file: str = ""
    line: int = 0


def ranked(suspects: list[PlacedOrigin]) -> list[Origin]:
    """Return the suspects, one for each cause.

    Those of the first step that has any come first, data and parameters before calls, what reaches a loss before what
    nothing reads and what differs behind another fault, then in order of running.
    """
    # A collective that is given the same brings what another rank gave it: that rank's origin comes first.
    own = {(one.origin.step, one.origin.rank) for one in suspects if one.origin.kind != "collective"}

    def place(item: PlacedOrigin) -> tuple[float, ...]:
        one = item.origin
        brought = one.kind == "collective" and any(step == one.step and rank != one.rank for step, rank in own)
        return one.step, _FIRST.get(one.kind, 2), item.weight, brought, item.order, one.rank

    return told_once([item.origin for item in sorted(suspects, key=place)])[:_MOST]


def told_once(origins: Iterable[Origin]) -> list[Origin]:
    """Return the first origin of each cause, in order; its details and its reason say where else the cause shows."""
    groups: dict[_Cause, list[Origin]] = {}
    for one in origins:
        groups.setdefault(_cause(one), []).append(one)
    return [_with_places(group) for group in groups.values()]


def _cause(origin: Origin) -> _Cause:
    kind = "call" if origin.kind not in _FIRST else origin.kind
    if kind == "call" and origin.source is not None:
        return _Cause(kind, _operator(origin.call), origin.source.file, origin.source.line)
    return _Cause(kind, _NUMBER.sub("*", origin.call.rpartition(".step.")[0] or origin.call))


def _operator(call: str) -> str:
    """Return a call's name without its numbers and its direction."""
    return re.sub(r"\.(forward|backward|input)\b", "", _NUMBER.sub("*", call))


def _with_places(group: list[Origin]) -> Origin:
    """Return the first of a group, with a count of the others' modules, steps and ranks."""
    first = group[0]
    if len(group) == 1:
        return first
    counts = {
        "calls": len({(one.step, one.rank, one.call) for one in group}),
        "modules": len({one.module for one in group}),
        "steps": len({one.step for one in group}),
        "ranks": len({one.rank for one in group}),
    }
    several = [f"{count} {what}" for what, count in counts.items() if count > 1 and what != "calls"]
    text = f"; the same in {', '.join(several)}" if several else f"; the same in {counts['calls']} calls"
    if counts["calls"] == 1:
        return first
    others = [one.call for one in group[1:_MOST]]
    details = {**first.details, "places": counts, "elsewhere": others}
    return replace(first, reason=first.reason + text, details=details)
