"""Matches module paths against paths and patterns."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable


def path_matcher(paths: Iterable[str]) -> Callable[[str], bool]:
    """Return a test for module paths: a path itself, or a pattern such as `blocks.*.attn`."""
    listed = list(paths)
    exact = {path for path in listed if not any(mark in path for mark in "*?[")}
    globs = [re.compile(fnmatch.translate(path)) for path in listed if path not in exact]
    return lambda path: path in exact or (bool(path) and any(glob.match(path) for glob in globs))
