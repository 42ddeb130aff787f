"""Findings in words: the origin's sentence, its kind, mechanism and source line."""

from __future__ import annotations

import math
from pathlib import PurePath
from typing import Any, cast

from numscope.compare.judge import operators
from numscope.compare.judge.findings import Finding
from numscope.compare.load.side import Side
from numscope.compare.load.sources import Sources
from numscope.core.report import Origin, Source
from numscope.core.words import Mechanism, OriginKind, Phase

_DDP = "DistributedDataParallel"


def number(value: float) -> str:
    """Return a measure as people write it: two digits."""
    if math.isinf(value):
        return "infinity"
    return "0" if value == 0 else f"{value:.2g}"


def origin(finding: Finding, a: Side, b: Side, sources: tuple[Sources, Sources]) -> Origin:
    """Return a finding as the report has it."""
    side, row, place = (a, finding.target, 0) if finding.target >= 0 else (b, finding.reference, 1)
    if finding.kind == "missing":
        side, row, place = b, finding.reference, 1
    calls, words = side.calls, side.book.words
    source = sources[place].of(int(calls.stack[row])) or sources[place].of(int(calls.stack[_forward(side, row)]))
    if source is None and place == 0 and finding.reference >= 0:
        source = sources[1].of(int(b.calls.stack[finding.reference]))
    module = _module(side, row)
    name = calls.name(row)
    kind = _kind(finding, words[calls.kind[row]], name)
    if kind == "parameter":
        name = ".".join(part for part in (module, finding.slot.partition(".")[2]) if part)
    phase = "input" if kind in ("data", "parameter") else words[calls.phase[row]]
    return Origin(
        call=name,
        kind=cast(OriginKind, kind),
        phase=cast(Phase, phase),
        step=finding.step,
        rank=finding.rank,
        reason=_sentence(finding, a, b, sources, kind, name, module, source),
        module=module,
        source=source,
        mechanism=_mechanism(finding, kind),
        relative=finding.relative,
        expected=finding.expected,
        details=_details(finding, a, b),
    )


def _kind(finding: Finding, recorded: str, name: str) -> str:
    if finding.kind in ("data", "parameter", "missing", "extra", "optimizer"):
        return finding.kind
    if name.startswith("Distributed."):
        return "collective"
    return recorded if recorded in ("api", "module", "aten", "collective", "optimizer", "data") else "api"


def _mechanism(finding: Finding, kind: str) -> Mechanism:
    if kind == "parameter":
        return "parameter"
    if kind == "data" or finding.random or finding.kind == "gap":
        return "input"
    if finding.note in ("in place", "other layout") or finding.note.startswith("gradient of"):
        return "semantic"
    if any(difference.telling for difference in finding.differences) or kind in ("missing", "extra"):
        return "semantic"
    return "precision" if finding.dtypes else "unknown"


def _details(finding: Finding, a: Side, b: Side) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if finding.differences:
        details["arguments"] = [str(difference) for difference in finding.differences]
    if finding.slot:
        details["slot"] = finding.slot
    if finding.kind in ("missing", "extra") and finding.note:
        details["shows_in"] = finding.note
    if finding.target >= 0:
        details["target_order"] = int(a.calls.order[finding.target])
    if finding.reference >= 0:
        details["reference_order"] = int(b.calls.order[finding.reference])
        details["reference_call"] = b.calls.name(finding.reference)
    return details


def _sentence(
    finding: Finding,
    a: Side,
    b: Side,
    sources: tuple[Sources, Sources],
    kind: str,
    name: str,
    module: str,
    source: Source | None,
) -> str:
    off = number(finding.relative)
    if kind == "data":
        text = f"the input data differs before any call: {name}, {finding.slot} is off by {off}"
        if finding.parts:
            text = f"the input data is of another size: {name}, {finding.slot} is {finding.parts}"
    elif kind == "parameter":
        when = "changed between the steps" if finding.note else "differs before any call"
        what = "buffer" if finding.slot.startswith("buffers") else "parameter"
        text = f"{what} {name} {when}: off by {off}"
    elif kind == "missing":
        text = f"{_title(b, finding.reference)}: only the reference has this call"
        text += _then(finding)
    elif kind == "extra":
        text = f"{_title(a, finding.target)}: only the target has this call"
        if finding.reference >= 0:
            text += f" (the reference has {_operator(b, finding.reference)} in its place)"
        text += _then(finding)
    elif finding.kind == "gap":
        text = (
            f"{_title(a, finding.target)}: its {finding.slot} is off by {off} though the calls before it agree: "
            "something that was not recorded made it differ"
        )
        text += _reducing(finding, a, b)
    else:
        text = _call_sentence(finding, a, b)
    for difference in finding.differences[:3]:
        text += f"; argument {difference}"
    if finding.random and kind not in ("missing", "extra", "data"):
        text += "; it draws random numbers, and the two runs drew different ones"
    elif finding.dtypes:
        text += f"; it computes in {finding.dtypes[0]}, the reference in {finding.dtypes[1]}"
    if source is not None:
        text += f"; {PurePath(source.file).name}:{source.line}"
    return text


def _reducing(finding: Finding, a: Side, b: Side) -> str:
    """Say that a wrapper reduces gradients between backward and what is given them, unseen but at level aten."""
    given_later = a.calls.module[finding.target] < 0 or not a.book.words[a.calls.module[finding.target]]
    code = a.book.numbers.get(_DDP, -2)
    has = [bool((side.calls.module_class == code).any()) for side in (a, b)]
    if not given_later or not any(has):
        return ""
    if all(has):
        return f"; {_DDP} reduces gradients before it"
    return f"; only the {'target' if has[0] else 'reference'} is in {_DDP}, which reduces gradients before it"


def _call_sentence(finding: Finding, a: Side, b: Side) -> str:
    given = "inputs identical" if finding.came_in == 0 else f"inputs within {number(finding.came_in)}"
    given = finding.given or given
    text = _title(a, finding.target)
    if finding.note == "on state":
        return f"{text}: it changes state that later steps read"
    if finding.note == "parts":
        size = f"its {finding.slot} is off by {number(finding.relative)}, {finding.given}"
        return f"{text}: {size}; before it the runs are given parts of other sizes of a batch ({finding.parts})"
    if finding.note == "other inputs":
        off = number(finding.relative)
        if finding.parts and not finding.differences:
            return f"{text}: the runs are given parts of other sizes of a batch ({finding.parts}); what follows is off by {off}"
        if finding.reference >= 0 and _operator(a, finding.target) != _operator(b, finding.reference):
            return f"{text}: the reference has {_operator(b, finding.reference)} in its place; what follows is off by {off}"
        return f"{text}: {_other_operands(finding, a, b)}; what follows is off by {off}"
    if finding.note.startswith("gradient of"):
        who, other = ("target", "reference") if finding.note.endswith("target") else ("reference", "target")
        return f"{text}: the {who} has a gradient {finding.slot} here, the {other} has none"
    if finding.note.startswith("only the"):
        return f"{text}: {finding.note} {finding.slot.partition('.')[2]} among the parameters it updates"
    if finding.note == "other layout":
        off = number(finding.relative)
        return f"{text}: it lays its output out in another shape than its counterpart; what follows is off by {off}"
    if finding.note == "in place":
        off = number(finding.relative)
        return f"{text}: {_who_writes(finding, a)}; {finding.slot} reads it afterwards, off by {off}"
    if finding.note == "another tensor":
        return f"{text}: its {finding.slot} is another tensor than the reference's, off by {number(finding.relative)}"
    outputs = f"{finding.slot} differs" if finding.slot else "outputs differ"
    text += f": {given}, {outputs} by {number(finding.relative)} (rounding explains {number(finding.expected)})"
    other, mine = _operator(b, finding.reference), _operator(a, finding.target)
    if other != mine and finding.reference >= 0:
        text += f"; the reference has {other} in its place"
    if finding.note == "inner calls agree":
        text += "; its inner calls agree"
    if mine.startswith("Distributed.") and finding.came_in == 0 and not finding.differences:
        text += "; it brings what another rank gave it"
    return text


def _other_operands(finding: Finding, a: Side, b: Side) -> str:
    """Say which tensors one side alone is given, or only that the two do not do the same."""
    given = []
    for side, row in ((a, finding.target), (b, finding.reference)):
        codes = side.slots.slot[side.slots.start[row] : side.slots.start[row + 1]] if row >= 0 else ()
        slots = [side.book.words[code] for code in codes]
        given.append([slot for slot in slots if slot.startswith(("input", "kwargs"))])
    for slot in given[0]:
        name, _, number = slot.rpartition(".")
        counts = [sum(one.startswith(f"{name}.") for one in slots) for slots in given]
        if number.isdigit() and "." in name and counts[0] != counts[1] > 0:
            return f"it is given {counts[0]} tensors as {name}, its counterpart {counts[1]}"
    mine, theirs = (", ".join(slot for slot in one if slot not in other) for one, other in (given, given[::-1]))
    if bool(mine) == bool(theirs):
        return "it does not do the same as its counterpart"
    return f"it is given {mine}, its counterpart is not" if mine else f"its counterpart is given {theirs}, it is not"


def _who_writes(finding: Finding, a: Side) -> str:
    arguments = int(a.calls.arguments[finding.target])
    text = a.book.words[arguments] if arguments >= 0 else ""
    if operators.writes_into_its_input(a.calls.name(finding.target), text):
        return "it writes into its input, which the reference's leaves as it is"
    return "it leaves its input as it is, and the reference's writes into it"


def _then(finding: Finding) -> str:
    """Say what comes of a call that one side alone has."""
    off = number(finding.relative)
    if finding.given:
        return f"; {finding.note} ({finding.given}) is then off by {off}"
    return f"; {finding.note} then gets {finding.slot or 'an input'} off by {off}"


def _operator(side: Side, row: int) -> str:
    words, calls = side.book.words, side.calls
    if words[calls.kind[row]] == "module":
        return str(words[calls.module_class[row]])
    return str(words[calls.op[row]])


def _forward(side: Side, row: int) -> int:
    """Return a backward call's forward call, for all others itself: what the engine runs is nobody's line and in no module."""
    forward = int(side.calls.forward[row])
    return forward if forward >= 0 else row


def _module(side: Side, row: int) -> str:
    codes = side.calls.module[[row, _forward(side, row)]].tolist()
    return next((side.book.words[code] for code in codes if code >= 0 and side.book.words[code]), "")


def _title(side: Side, row: int) -> str:
    """Return a call as people speak of it: its operator, where it is, and the direction if it is not forward."""
    words, calls = side.book.words, side.calls
    title = _operator(side, row).removeprefix("Optimizer.")
    if module := _module(side, row):
        title += f" in {module}" if words[calls.kind[row]] != "module" else f" {module}"
    return title + (" backward" if words[calls.phase[row]] == "backward" else "")


def title_of(side: Side, row: int) -> str:
    """Return a call as people speak of it."""
    return _title(side, row)


__all__ = ["number", "operators", "origin", "title_of"]
