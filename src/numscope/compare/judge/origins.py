"""Puts a finding into words: the report's origin, with its sentence, kind, mechanism and source line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import cast

from numscope.compare.judge.call_titles import forward_of, module_of
from numscope.compare.judge.findings import Finding
from numscope.compare.judge.reasons import DataDiffers, DataOfAnotherSize, ParameterDiffers
from numscope.compare.load.side import Side
from numscope.compare.load.sources import Sources
from numscope.core.report import Origin, Source
from numscope.core.words import Mechanism, OriginKind, Phase

_RECORDED: tuple[OriginKind, ...] = ("api", "module", "aten", "collective", "optimizer", "data")


def origin(finding: Finding, a: Side, b: Side, sources: tuple[Sources, Sources]) -> Origin:
    """Return a finding as the report has it."""
    side, row = finding.call(a, b)
    calls, words = side.calls, side.book.words
    name = calls.name(row)
    recorded = _recorded_kind(words[calls.kind[row]], name)
    if recorded == "data" and finding.reason.kind is None:  # whatever made it differ
        finding = replace(finding, reason=DataOfAnotherSize() if finding.batch_shapes else DataDiffers())
    reason = finding.reason
    kind = reason.kind or recorded
    source = _source(finding, a, b, sources)
    return Origin(
        call=reason.name(finding, a, b) if isinstance(reason, ParameterDiffers) else name,
        kind=kind,
        phase="input" if kind in ("data", "parameter") else cast(Phase, words[calls.phase[row]]),
        step=finding.step,
        rank=finding.rank,
        reason=reason.sentence(finding, a, b) + _evidence(finding, kind, source),
        module=module_of(side, row),
        source=source,
        mechanism=_mechanism(finding),
        relative=finding.relative,
        expected=finding.expected,
        details=_details(finding, a, b),
    )


def _recorded_kind(recorded: str, name: str) -> OriginKind:
    if name.startswith("Distributed."):
        return "collective"
    return next((kind for kind in _RECORDED if kind == recorded), "api")


def _source(finding: Finding, a: Side, b: Side, sources: tuple[Sources, Sources]) -> Source | None:
    """Return the source line of the call, else of its forward call, else of its counterpart."""
    side, row = finding.call(a, b)
    of_target, of_reference = sources
    own = of_target if finding.target >= 0 else of_reference
    found = own.of(int(side.calls.stack[row])) or own.of(int(side.calls.stack[forward_of(side, row)]))
    if found is None and finding.target >= 0 and finding.reference >= 0:
        found = of_reference.of(int(b.calls.stack[finding.reference]))
    return found


def _mechanism(finding: Finding) -> Mechanism:
    mechanism = finding.reason.mechanism
    if finding.random and mechanism != "parameter":
        return "input"
    if mechanism is not None:
        return mechanism
    if finding.has_telling_arguments:
        return "semantic"
    return "precision" if finding.dtypes else "unknown"


def _details(finding: Finding, a: Side, b: Side) -> dict[str, object]:
    details: dict[str, object] = {}
    if finding.differences:
        details["arguments"] = [str(difference) for difference in finding.differences]
    if finding.random:
        details["random"] = True  # it draws random numbers
    details |= finding.reason.details(finding)
    if finding.target >= 0:
        details["target_order"] = int(a.calls.order[finding.target])
    if finding.reference >= 0:
        details["reference_order"] = int(b.calls.order[finding.reference])
        details["reference_call"] = b.calls.name(finding.reference)
    return details


def _evidence(finding: Finding, kind: OriginKind, source: Source | None) -> str:
    """Return the end of a sentence: arguments and dtypes that differ, random draws, and the source line."""
    text = "".join(f"; argument {difference}" for difference in finding.differences[:3])
    if finding.random and kind not in ("missing", "extra", "data"):
        text += "; it draws random numbers, and the two runs drew different ones"
    elif finding.dtypes:
        text += f"; it computes in {finding.dtypes.target}, the reference in {finding.dtypes.reference}"
    if source is not None:
        text += f"; {PurePath(source.file).name}:{source.line}"
    return text
