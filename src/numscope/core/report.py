"""The report of compare, diagnose and check, in the one shape that `--json` writes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import cast, overload

from numscope.core.json_value import Json, JsonObject
from numscope.core.words import Mechanism, OriginKind, Phase, Verdict

FORMAT = "numscope.report/1"
EXIT_STATUS: dict[Verdict, int] = {"identical": 0, "equivalent": 0, "diverged": 1, "incomplete": 2, "incomparable": 2}


@dataclass(frozen=True)
class Source:
    """The innermost frame of the user's own code."""

    file: str
    line: int
    function: str = ""
    code: str = ""


@dataclass(frozen=True)
class Origin:
    """The first call whose output is wrong though its inputs were right, or one of its rivals."""

    call: str
    kind: OriginKind
    phase: Phase
    step: int
    rank: int
    reason: str
    module: str = ""
    source: Source | None = None
    mechanism: Mechanism = "unknown"
    relative: float | None = None
    expected: float | None = None
    repair: str | None = None
    details: JsonObject = field(default_factory=dict)
    chain: tuple[str, ...] = ()  # from the use to the cause, in words

    def to_dict(self) -> JsonObject:
        """Return the origin as JSON."""
        shape = {
            "call": self.call,
            "kind": self.kind,
            "module": self.module,
            "phase": self.phase,
            "step": self.step,
            "rank": self.rank,
            "source": asdict(self.source) if self.source else None,
            "mechanism": self.mechanism,
            "reason": self.reason,
            "error": {"relative": self.relative, "expected": self.expected},
            "repair": self.repair,
            "chain": list(self.chain),
            "details": self.details,
        }
        return {key: plain(value) for key, value in shape.items()}


@dataclass(frozen=True)
class Report:
    """The verdict of a comparison, with the evidence for it."""

    verdict: Verdict
    origin: Origin | None = None
    suspects: tuple[Origin, ...] = ()
    prefix: JsonObject = field(default_factory=lambda: {"calls": 0, "last": None})
    coverage: JsonObject = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    reason: str = ""
    settings: tuple[JsonObject, ...] = ()  # in which the two runs differ: name, target, reference
    resolution: JsonObject | None = None  # how small a fault would have shown: largest, call, typical, sentence
    details: JsonObject = field(default_factory=dict)

    def to_dict(self) -> JsonObject:
        """Return the report as JSON."""
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            "reason": self.reason,
            "origin": self.origin.to_dict() if self.origin else None,
            "suspects": [suspect.to_dict() for suspect in self.suspects],
            "prefix": plain(self.prefix),
            "coverage": plain(self.coverage),
            "resolution": plain(self.resolution),
            "settings": [plain(one) for one in self.settings],
            "counts": plain(self.counts),
            **({"details": plain(self.details)} if self.details else {}),
        }


@overload
def plain(value: Mapping[str, object]) -> dict[str, Json]: ...
@overload
def plain(value: object) -> Json: ...
def plain(value: object) -> Json:
    """Return a value as strict JSON: NaN and infinities become strings."""
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        scalar: object = value.item()
        return plain(scalar)
    return cast(Json, value)  # callers give text, whole numbers, booleans and None besides
