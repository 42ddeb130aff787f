"""Ranks the suspects of all steps and ranks: one cause is one suspect, with a count of the places where it shows.

Of the many findings of a job of many ranks only those that are told are put together again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, NamedTuple

import pyarrow as pa

from numscope.compare.parts.records import from_text, to_text
from numscope.compare.parts.rows import Rows
from numscope.compare.schema import FINDINGS
from numscope.compare.steps import PlacedOrigin
from numscope.core.report import Origin

Role = Literal["origin", "rearranged", "beyond"]

_FIRST = {"data": 0, "parameter": 1}
_MOST = 50  # suspects that a report lists
_NUMBER = re.compile(r"\d+")
_SHORT = [name for name in FINDINGS.names if name != "text"]


class _Cause(NamedTuple):
    """The key that suspects of one cause share: a line of code and an operator, or a name but for its numbers."""

    kind: str
    name: str
    file: str = ""
    line: int = 0


class _Found(NamedTuple):
    """A finding without its words."""

    row: int
    step: int
    rank: int
    kind: str
    call: str
    module: str
    file: str | None
    line: int | None
    order: float
    weight: int


def findings_table(found: Iterable[PlacedOrigin], role: Role) -> pa.Table:
    """Return findings as rows."""
    rows = [
        {
            "step": one.origin.step,
            "rank": one.origin.rank,
            "role": role,
            "kind": one.origin.kind,
            "call": one.origin.call,
            "module": one.origin.module,
            "file": one.origin.source.file if one.origin.source is not None else None,
            "line": one.origin.source.line if one.origin.source is not None else None,
            "order": one.order,
            "weight": int(one.weight),
            "text": to_text(one.origin),
        }
        for one in found
    ]
    return pa.Table.from_pylist(rows, FINDINGS)


def ranked(findings: Rows) -> list[Origin]:
    """Return the suspects, one for each cause.

    Those of the first step that has any come first, data and parameters before calls, what reaches a loss before what
    nothing reads and what differs behind another fault, then in order of running.
    """
    suspects = _of_role(findings, "origin")
    # A collective that is given the same brings what another rank gave it: that rank's origin comes first.
    own: dict[int, set[int]] = defaultdict(set)  # ranks by step
    for one in suspects:
        if one.kind != "collective":
            own[one.step].add(one.rank)

    def place(one: _Found) -> tuple[float, ...]:
        brought = one.kind == "collective" and bool(own[one.step] - {one.rank})
        return one.step, _FIRST.get(one.kind, 2), one.weight, brought, one.order, one.rank

    return _told_once(findings, sorted(suspects, key=place))


def told_once(findings: Rows, role: Role) -> list[Origin]:
    """Return the first finding of each cause, in order; its details and its reason say where else the cause shows."""
    return _told_once(findings, _of_role(findings, role))


def _of_role(findings: Rows, role: Role) -> list[_Found]:
    found: list[_Found] = []
    begin = 0
    for part in findings.batches(_SHORT):
        columns = {name: part[name].to_pylist() for name in _SHORT}
        for at, own in enumerate(columns.pop("role")):
            if own == role:
                found.append(_Found(begin + at, **{name: values[at] for name, values in columns.items()}))
        begin += part.num_rows
    return found


def _told_once(findings: Rows, found: list[_Found]) -> list[Origin]:
    groups: dict[_Cause, list[_Found]] = {}
    for one in found:
        groups.setdefault(_cause(one), []).append(one)
    told = list(groups.values())[:_MOST]
    texts = findings.take([group[0].row for group in told])["text"].to_pylist()
    return [_with_places(from_text(Origin, text), group) for text, group in zip(texts, told)]


def _cause(one: _Found) -> _Cause:
    kind = "call" if one.kind not in _FIRST else one.kind
    if kind == "call" and one.file is not None:
        return _Cause(kind, _operator(one.call), one.file, one.line or 0)
    return _Cause(kind, _NUMBER.sub("*", one.call.rpartition(".step.")[0] or one.call))


def _operator(call: str) -> str:
    """Return a call's name without its numbers and its direction."""
    return re.sub(r"\.(forward|backward|input)\b", "", _NUMBER.sub("*", call))


def _with_places(first: Origin, group: list[_Found]) -> Origin:
    """Return the first of a group, with a count of the others' modules, steps and ranks."""
    counts = {
        "calls": len({(one.step, one.rank, one.call) for one in group}),
        "modules": len({one.module for one in group}),
        "steps": len({one.step for one in group}),
        "ranks": len({one.rank for one in group}),
    }
    if counts["calls"] == 1:
        return first
    several = [f"{count} {what}" for what, count in counts.items() if count > 1 and what != "calls"]
    text = f"; the same in {', '.join(several)}" if several else f"; the same in {counts['calls']} calls"
    others = [one.call for one in group[1:_MOST]]
    details = {**first.details, "places": counts, "elsewhere": others}
    return replace(first, reason=first.reason + text, details=details)
