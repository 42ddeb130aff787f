"""The map file: a user's own pairs of calls and modules, and the layouts of tensors that are stored differently.

[[call]]                      # two calls, or patterns in which * stands for the same text on both sides
target = "Functional.gelu.*.forward"
reference = "Torch.erf_gelu.*.forward"

[[module]]                    # module paths of the target, as the reference names them
target = "encoder.layers.*"
reference = "blocks.*"

[[layout]]                    # how to bring a target's tensor into the reference's layout
tensor = "*.parameters.weight"
transpose = [1, 0]            # or reshape = [4, 8], concat = 0, split = [0, 2, 0], dtype = "float32"
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from numscope.compare.load.side import Side
from numscope.core.dtypes import AnyArray
from numscope.core.errors import SettingsError
from numscope.core.toml import read_toml
from numscope.store.schema import TableRow

_STEPS = ("concat", "transpose", "split", "reshape", "dtype")
Fetch = Callable[[str], AnyArray]  # a tensor of the target by its name


@dataclass(frozen=True)
class Rule:
    """A pattern of the target's names, and the reference's name for what matches."""

    target: re.Pattern[str]
    reference: str

    def translate(self, name: str) -> str | None:
        """Return the reference's name for a target's name, or None where the pattern does not match."""
        match = self.target.fullmatch(name)
        if match is None:
            return None
        parts = iter(match.groups())
        return re.sub(r"\*", lambda _: next(parts, "*"), self.reference)


class Split(NamedTuple):
    """One of the equal parts of a tensor along an axis."""

    axis: int
    parts: int
    part: int


class Concat(NamedTuple):
    """The target's other tensors that are joined to one along an axis."""

    axis: int
    others: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """How to bring tensors whose name matches into the reference's layout."""

    tensor: re.Pattern[str]
    transpose: tuple[int, ...] | None = None
    reshape: tuple[int, ...] | None = None
    split: Split | None = None
    dtype: str | None = None
    concat: Concat | None = None

    def apply(self, array: AnyArray, fetch: Fetch) -> AnyArray:
        """Return the target's array in the reference's layout."""
        if self.concat is not None:
            others = (fetch(name) for name in self.concat.others)
            array = np.concatenate([array, *others], axis=self.concat.axis)
        if self.transpose is not None:
            array = array.transpose(self.transpose)
        if self.split is not None:
            array = np.split(array, self.split.parts, axis=self.split.axis)[self.split.part]
        if self.reshape is not None:
            array = array.reshape(self.reshape)
        return array.astype(self.dtype) if self.dtype is not None else array


@dataclass(frozen=True)
class Map:
    """The rules of a map file."""

    calls: tuple[Rule, ...]
    modules: tuple[Rule, ...]
    layouts: tuple[Layout, ...]

    def pairs(self, a: Side, b: Side) -> list[tuple[int, int]]:
        """Return the rows of the calls that the file pairs, modules before the calls inside them."""
        by_name = {b.calls.name(row): row for row in range(len(b.calls))}
        pairs: dict[int, int] = {}
        for row in range(len(a.calls)) if self.calls or self.modules else ():
            partner = self._partner(a, row, by_name)
            if partner is not None:
                pairs[row] = partner
        return sorted(pairs.items())

    def _partner(self, a: Side, row: int, by_name: dict[str, int]) -> int | None:
        name = a.calls.name(row)
        for rule in self.calls:
            other = rule.translate(name)
            if other is not None and other in by_name:
                return by_name[other]
        for rule in self.modules:
            path = str(a.book.words[a.calls.module[row]]) if a.calls.module[row] >= 0 else ""
            other = rule.translate(path) if path else None
            if other is not None and name.startswith(f"Module.{path}."):
                tail = _without_class(name.removeprefix(f"Module.{path}."))
                head = f"Module.{other}."
                for candidate, partner in by_name.items():
                    rest = candidate[len(head) :] if candidate.startswith(head) else ""
                    if _without_class(rest) == tail and rest.count(".") == 2:
                        return partner
        return None

    def layout(self, name: str) -> Layout | None:
        """Return the layout rule for a target's tensor, or None."""
        return next((rule for rule in self.layouts if rule.tensor.fullmatch(name)), None)


def _without_class(rest: str) -> str:
    """Return `forward.0` of `Linear.forward.0`: the two models may name the class differently."""
    _, _, tail = rest.partition(".")
    return tail


def load_map(path: str | os.PathLike[str]) -> Map:
    """Read a map file."""
    content = read_toml(path)
    unknown = set(content) - {"call", "module", "layout"}
    if unknown:
        raise SettingsError(f"{path}: there is no table {sorted(unknown)[0]!r}; there are call, module and layout")
    return Map(
        tuple(_rules(path, content.get("call", []), "call")),
        tuple(_rules(path, content.get("module", []), "module")),
        tuple(_layouts(path, content.get("layout", []))),
    )


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile("(.*)".join(re.escape(part) for part in text.split("*")))


def _rules(path: str | os.PathLike[str], entries: list[TableRow], table: str) -> Iterator[Rule]:
    for entry in entries:
        if set(entry) != {"target", "reference"} or not all(isinstance(value, str) for value in entry.values()):
            raise SettingsError(f"{path}: a [[{table}]] has exactly the texts target and reference, not {entry}")
        if entry["target"].count("*") != entry["reference"].count("*"):
            raise SettingsError(f"{path}: {entry['target']!r} and {entry['reference']!r} have different numbers of *")
        yield Rule(_pattern(entry["target"]), entry["reference"])


def _layouts(path: str | os.PathLike[str], entries: list[TableRow]) -> Iterator[Layout]:
    for entry in entries:
        unknown = set(entry) - {"tensor", *_STEPS}
        if "tensor" not in entry or unknown:
            what = f"does not know {sorted(unknown)[0]!r}" if unknown else "needs a tensor"
            raise SettingsError(f"{path}: a [[layout]] {what}; it has tensor and {', '.join(_STEPS)}")
        yield Layout(
            _pattern(entry["tensor"]),
            tuple(entry["transpose"]) if "transpose" in entry else None,
            tuple(entry["reshape"]) if "reshape" in entry else None,
            _split(path, entry.get("split")),
            entry.get("dtype"),
            _concat(*entry["concat"]) if "concat" in entry else None,
        )


def _split(path: str | os.PathLike[str], values: list[int] | None) -> Split | None:
    if values is None:
        return None
    split = Split(*map(int, values)) if len(values) == 3 else None
    if split is None or not 0 <= split.part < split.parts:
        raise SettingsError(f"{path}: split = [axis, parts, which], not {values}")
    return split


def _concat(axis: int, *others: str) -> Concat:
    return Concat(int(axis), others)
