"""The map file of `numscope weights`: which tensors belong together, where names and values do not say.

[[pair]]
a = ["decoder.*.qkv"]         # patterns: * stands for the same text on both sides
b = ["layers.*.q", "layers.*.k", "layers.*.v"]
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from numscope.core.errors import SettingsError
from numscope.core.toml import read_toml
from numscope.weights.matching.components import Component, by_name
from numscope.weights.tensor import Tensor


@dataclass(frozen=True)
class Rule:
    """Patterns of the tensors that make one another."""

    a: tuple[str, ...]
    b: tuple[str, ...]


@dataclass(frozen=True)
class Map:
    """The rules of a map file."""

    rules: tuple[Rule, ...]
    path: str

    def components(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> list[Component]:
        """Return the components that the rules say, and those of names for what no rule matches."""
        ours, theirs = {tensor.name: tensor for tensor in a}, {tensor.name: tensor for tensor in b}
        found = []
        for rule in self.rules:
            for stars in _stars(rule.a[0], ours):
                here, there = ([_filled(pattern, stars) for pattern in side] for side in (rule.a, rule.b))
                missing = [name for name in here if name not in ours] + [name for name in there if name not in theirs]
                if missing:
                    raise SettingsError(
                        f"{self.path}: there is no tensor {missing[0]}; a rule names tensors of both sides"
                    )
                found.append(
                    Component([ours.pop(n) for n in here], [theirs.pop(n) for n in there], f"{self.path} says so")
                )
        return found + by_name(list(ours.values()), list(theirs.values()))


def load_map(path: str | os.PathLike[str]) -> Map:
    """Read a map file."""
    content = read_toml(path)
    unknown = set(content) - {"pair"}
    if unknown:
        raise SettingsError(f"{path}: there is no table {sorted(unknown)[0]!r}; there is pair")
    rules = []
    for entry in content.get("pair", []):
        sides = [entry.get(side) for side in ("a", "b")] if set(entry) == {"a", "b"} else [None, None]
        lists = [tuple([side] if isinstance(side, str) else side or ()) for side in sides]
        if not all(side and all(isinstance(name, str) for name in side) for side in lists):
            raise SettingsError(f"{path}: a [[pair]] has exactly a and b, each a name or a list of names, not {entry}")
        if len({name.count("*") for side in lists for name in side}) > 1:
            raise SettingsError(f"{path}: the names of a [[pair]] have different numbers of *: {entry}")
        rules.append(Rule(*lists))
    return Map(tuple(rules), os.fspath(path))


def _stars(pattern: str, tensors: dict[str, Tensor]) -> Iterator[tuple[str, ...]]:
    expression = re.compile("(.*)".join(re.escape(part) for part in pattern.split("*")))
    for name in list(tensors):
        match = expression.fullmatch(name)
        if match is not None:
            yield match.groups()


def _filled(pattern: str, stars: tuple[str, ...]) -> str:
    parts = iter(stars)
    return re.sub(r"\*", lambda _: next(parts, "*"), pattern)
