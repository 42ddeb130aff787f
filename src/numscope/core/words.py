"""The closed vocabularies of a run and of a report, as literal types."""

from __future__ import annotations

from typing import Literal

Level = Literal["module", "api", "mix", "aten"]
Keep = Literal["structure", "stats", "sample", "tensors"]
Kind = Literal["module", "api", "aten", "collective", "optimizer", "parameter", "data", "save"]
Phase = Literal["forward", "backward", "optimizer", "input"]
PairVerdict = Literal["identical", "equivalent", "origin", "inherited", "unmatched"]
Verdict = Literal["identical", "equivalent", "diverged", "incomplete", "incomparable"]
OriginKind = Literal["api", "module", "aten", "collective", "optimizer", "parameter", "data", "missing", "extra"]
Mechanism = Literal["semantic", "precision", "order", "device", "input", "parameter", "unknown"]
