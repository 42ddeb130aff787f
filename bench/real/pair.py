"""A pair of releases, as its script describes it: what to install, and what the answer must name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

PAIRS = Path(__file__).parent / "pairs"


@dataclass(frozen=True)
class Releases:
    """The two sides of a pair: `name==version` of what differs, and of what both need beside it."""

    bad: str
    fixed: str
    beside: tuple[str, ...] = ()  # installed for both, by name and version
    said: tuple[str, ...] = ()  # `name==version` that a release insists on and does not need: only said to be there


@dataclass(frozen=True)
class Bug:
    """A public bug: where its wrong numbers first show, and the statement that its fix changed."""

    report: str  # the public report, or the fix
    shows: tuple[str, ...]  # patterns, one of which fits the line of the origin: `file.py:function: code`
    statement: tuple[str, ...]  # patterns, one of which fits what is printed from the use to the cause


@dataclass(frozen=True)
class Pair:
    """A script, its two releases, and its bug; without a bug it is a control."""

    name: str
    script: Path
    purpose: str
    releases: Releases
    bug: Bug | None


def load(patterns: str = "*") -> list[Pair]:
    """Return the pairs whose name matches one of the shell patterns, separated by commas; bugs first."""
    names = sorted(path.stem for path in PAIRS.glob("*.py") if path.stem != "__init__")
    pairs = [_pair(name) for name in names if any(fnmatch(name, part) for part in patterns.split(","))]
    return sorted(pairs, key=lambda pair: (pair.bug is None, pair.name))


def _pair(name: str) -> Pair:
    module = importlib.import_module(f"bench.real.pairs.{name}")
    bug = getattr(module, "BUG", None)
    if (bug is None) is not name.startswith("control_"):
        raise ValueError(f"{name}: a pair has a BUG, or is a control_ and has none")
    purpose = (module.__doc__ or "").strip()
    return Pair(name, PAIRS / f"{name}.py", purpose, module.RELEASES, bug)


def run(main: Callable[[], object]) -> None:
    """Run the job of a script on one thread, from the same seed on both sides."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    main()
