"""Scope: which calls are recorded, decided once per name and remembered."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from typing import Any


def matcher(patterns: Any) -> Callable[[str], bool]:
    """Return a test for names: a pattern matches as a glob, a substring, or a compiled regular expression."""
    if patterns is None:
        return lambda name: True
    if callable(patterns):
        return lambda name: bool(patterns(name))
    items = [patterns] if isinstance(patterns, (str, re.Pattern)) else list(patterns)
    tests = [_single(item) for item in items]
    return lambda name: any(test(name) for test in tests)


def _single(pattern: Any) -> Callable[[str], bool]:
    if isinstance(pattern, re.Pattern):
        return lambda name: pattern.search(name) is not None
    if isinstance(pattern, type):
        return lambda name: f".{pattern.__name__}." in name
    if any(mark in pattern for mark in "*?["):
        glob = re.compile(fnmatch.translate(pattern))
        return lambda name: glob.match(name) is not None
    return lambda name: pattern in name


def any_of(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return a test that is false for every name where there are no patterns."""
    listed = list(patterns)
    return matcher(listed) if listed else (lambda name: False)
