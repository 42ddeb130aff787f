"""Scope: which calls are recorded.

A pattern is one of
    "Functional.linear"          a part of the call's name, or the module's path
    "blocks.*.mlp"               a glob over the whole name, or over the module's path
    "/linear|gelu/", re.compile  a regular expression, searched in the name
    "A..B", slice("A", "B")      all calls from A to B, both included, in each step; the names may end before the phase
    nn.Linear                    a class of modules: their calls and what runs inside them
    lambda call: ...             a test of a Call
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from numscope.core.errors import SettingsError


@dataclass(frozen=True)
class Call:
    """A call as a scope's test sees it."""

    name: str
    module: str
    module_class: str
    kind: str
    phase: str


Test = Callable[[Call], bool]
_PHASE = re.compile(r"\.(forward|backward)(\.\d+)?")
_MOST_NAMES = 20_000  # remembered for the hint where nothing matches


class Scope:
    """Decides for each call; a decision that depends on the name alone is made once."""

    def __init__(self, include: object = None, exclude: object = ()) -> None:
        self._ranges: list[_Range] = []
        self._include = [self._test(item) for item in _items(include)]
        self._exclude = [self._test(item) for item in _items(exclude)]
        self._wanted = [item for item in _items(include) if isinstance(item, str)]
        self._seen: set[str] = set()
        self._matched = False
        self.everything = not (self._include or self._exclude)
        self.stateful = bool(self._ranges)

    def __call__(self, call: Call) -> bool:
        """Tell whether a call is recorded."""
        in_range = [item.contains(call.name) for item in self._ranges]  # each range sees each call
        is_included = not self._include or any(test(call) for test in self._include) or any(in_range)
        is_recorded = is_included and not any(test(call) for test in self._exclude)
        self._matched = self._matched or is_recorded
        if not self._matched and len(self._seen) < _MOST_NAMES:
            self._seen.add(call.name)
        return is_recorded

    def ended(self, name: str) -> None:
        """Close the ranges whose last call has ended."""
        for item in self._ranges:
            item.ended(name)

    def new_step(self) -> None:
        """Close all ranges: each opens again in the next step."""
        for item in self._ranges:
            item.open = False

    def nothing_matched(self) -> str | None:
        """Return a sentence with the nearest names where calls were made and none was in scope."""
        if self._matched or not self._seen or not self._include:
            return None
        near: list[str] = []
        for item in self._wanted:
            near += difflib.get_close_matches(item, self._seen, 2, 0.4)
        hint = (
            f"; nearest are {', '.join(dict.fromkeys(near))}"
            if near
            else f"; seen were {', '.join(sorted(self._seen)[:3])} …"
        )
        return f"the scope {', '.join(map(str, self._wanted)) or 'given'} matched none of {len(self._seen)} calls{hint}"

    def _test(self, item: object) -> Test:
        if isinstance(item, slice) or (isinstance(item, str) and ".." in item and not item.startswith("/")):
            first, last = (item.start, item.stop) if isinstance(item, slice) else item.split("..", 1)
            if not first or not last:
                raise SettingsError(f"scope {item!r}: a range needs two names, FIRST..LAST")
            self._ranges.append(_Range(str(first).strip(), str(last).strip()))
            return lambda call: False
        return _single(item)


class _Range:
    """All calls from one name to another, both included."""

    def __init__(self, first: str, last: str) -> None:
        self._first = first
        self._last = last
        self.open = False

    def contains(self, name: str) -> bool:
        """Tell whether a call that begins is in the range; the first call opens it."""
        if _is_named(name, self._first):
            self.open = True
        return self.open

    def ended(self, name: str) -> None:
        if _is_named(name, self._last):
            self.open = False


def _is_named(name: str, wanted: str) -> bool:
    """Tell whether a call's name is the one wanted, with or without its phase."""
    return name.startswith(wanted) and (len(name) == len(wanted) or _PHASE.fullmatch(name, len(wanted)) is not None)


def _items(patterns: object) -> list[object]:
    if patterns is None:
        return []
    if isinstance(patterns, (str, re.Pattern, type, slice)) or callable(patterns):
        return [patterns]
    if not isinstance(patterns, Iterable):
        raise SettingsError(f"scope {patterns!r}: give a pattern, or a list of them")
    return list(patterns)


def _single(pattern: object) -> Test:
    if isinstance(pattern, str) and len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/"):
        try:
            pattern = re.compile(pattern[1:-1])
        except re.error as error:
            raise SettingsError(f"scope {pattern!r} is no regular expression: {error}") from None
    if isinstance(pattern, re.Pattern):
        search = pattern.search
        return lambda call: search(call.name) is not None
    if isinstance(pattern, type):
        class_name = pattern.__name__
        return lambda call: call.module_class == class_name
    if callable(pattern):
        test = pattern
        return lambda call: bool(test(call))
    if not isinstance(pattern, str):
        raise SettingsError(f"scope {pattern!r}: give names, globs, /regex/, FIRST..LAST, module classes or a function")
    if any(mark in pattern for mark in "*?["):
        glob = re.compile(fnmatch.translate(pattern))
        return lambda call: bool(glob.match(call.name) or glob.match(call.module))
    text = pattern
    return lambda call: text in call.name or text == call.module or call.module.startswith(f"{text}.")


def any_of(patterns: Iterable[object]) -> Callable[[str], bool]:
    """Return a test of names by patterns; false for every name where there are none."""
    tests = [_single(item) for item in patterns]
    return lambda name: any(test(Call(name, "", "", "", "")) for test in tests)
