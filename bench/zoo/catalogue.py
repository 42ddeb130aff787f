"""The cases, as each script describes itself."""

from __future__ import annotations

import fnmatch
import importlib
from dataclasses import dataclass
from pathlib import Path

from bench.zoo.truth import CASES, Truth

BENIGN = ("identical", "equivalent")


@dataclass(frozen=True)
class Case:
    """One script, and its right answer."""

    name: str
    script: Path
    purpose: str
    truth: Truth | None  # None: a control
    verdicts: tuple[str, ...]
    ranks: bool  # it starts processes of its own
    options: tuple[str, ...] = ()  # with which it is captured, beside those of all

    @property
    def control(self) -> bool:
        return self.truth is None


def load(patterns: str = "*") -> list[Case]:
    """Return the cases whose name matches one of the shell patterns, separated by commas; bugs first."""
    names = sorted(path.stem for path in CASES.glob("*.py") if path.stem != "__init__")
    cases = [_case(name) for name in names if any(fnmatch.fnmatch(name, part) for part in patterns.split(","))]
    return sorted(cases, key=lambda case: (case.control, case.name))


def _case(name: str) -> Case:
    module = importlib.import_module(f"bench.zoo.cases.{name}")
    truth = getattr(module, "ORIGIN", None)
    if (truth is None) is not getattr(module, "CONTROL", False):
        raise ValueError(f"{name}: a case has either ORIGIN or CONTROL = True")
    verdicts = getattr(module, "VERDICTS", BENIGN) if truth is None else ("diverged",)
    purpose = (module.__doc__ or "").strip()
    options = getattr(module, "OPTIONS", ())
    return Case(name, CASES / f"{name}.py", purpose, truth, verdicts, "launch" in vars(module), options)
