"""Shares of a comparison: which ranks each part has, and whether all parts are there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from numscope.compare.parts.results import INDEX, read_facts
from numscope.core.errors import RunError, SettingsError
from numscope.core.json_value import JsonObject

_SHARE = re.compile(r"(\d+)/(\d+)")


class Share(NamedTuple):
    """One of several parts, numbered from 1."""

    number: int
    of: int

    def of_all(self, ranks: Sequence[int]) -> Sequence[int]:
        """Return the ranks of this part: they are dealt out one by one."""
        return ranks[self.number - 1 :: self.of]


class PartWritten(NamedTuple):
    """A part that was written."""

    path: Path
    ranks: int
    places: int


class FoundPart(NamedTuple):
    """A part in a folder, and what it says of itself."""

    folder: Path
    facts: JsonObject


def parse_share(text: str) -> Share:
    """Return the share that `3/8` says."""
    found = _SHARE.fullmatch(text.strip())
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise SettingsError(
            f"--part {text}: give I/N, the part's number from 1 to N, and how many there are: --part 3/8"
        )
    return Share(int(found[1]), int(found[2]))


def complete(given: Sequence[Path], asked: JsonObject) -> list[FoundPart]:
    """Return the parts in these folders, or in folders inside these; raise where they are not all of one comparison."""
    folders = [
        inner
        for path in given
        for inner in ([path] if (path / INDEX).exists() or not path.is_dir() else sorted(path.glob("part-*-of-*")))
    ]
    found = {folder: read_facts(folder) for folder in folders}
    if not found:
        raise RunError(f"{', '.join(map(str, given))}: there is no part of a comparison here")
    of = {int(facts["of"]) for facts in found.values()}
    if len(of) > 1:
        raise RunError(f"these are parts of {' and of '.join(map(str, sorted(of)))}: give those of one comparison")
    for folder, facts in found.items():
        if facts["asked"] != asked:
            other = next(name for name in asked if facts["asked"].get(name) != asked[name])
            raise RunError(
                f"{folder} is a part of another comparison ({other} differs): give all parts the same options"
            )
    numbers = [int(facts["part"]) for facts in found.values()]
    (total,) = of
    missing = sorted(set(range(1, total + 1)) - set(numbers))
    if missing:
        few = ", ".join(map(str, missing[:5])) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise RunError(f"of {total} parts {few} {'is' if len(missing) == 1 else 'are'} missing: compare those first")
    if len(numbers) > total:
        raise RunError("a part is given twice: give each once")
    return [FoundPart(folder, facts) for folder, facts in found.items()]
