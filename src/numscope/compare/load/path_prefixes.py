"""Removes the outermost name from module paths where one of two models has a module more around it.

`model.layers.0` of a library's model is `layers.0` of a hand-written one. Where more paths agree without the outermost
name that most paths of a side share, calls are paired as if that name were not there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from numscope.compare.load.side import Side, distinct

_DEEPEST = 3
_SHARE = 0.5  # of a side's paths must begin with a name for it to be removed


def without_prefixes(a: Side, b: Side) -> tuple[Side, Side]:
    """Return the two sides with the operators of module calls renamed to paths without a prefix that one side alone has."""
    paths_a, paths_b = _paths(a), _paths(b)
    if paths_a == paths_b:
        return a, b
    now_a, now_b = dict(zip(paths_a, paths_a)), dict(zip(paths_b, paths_b))
    for _ in range(_DEEPEST):
        choices = [
            (short_a, short_b)
            for short_a in (now_a, _shorter(now_a))
            for short_b in (now_b, _shorter(now_b))
            if short_a is not None and short_b is not None
        ]
        best_a, best_b = max(choices, key=_agreement)  # of equals the first: the paths as they are
        if best_a is now_a and best_b is now_b:
            break
        now_a, now_b = best_a, best_b
    return _renamed(a, now_a), _renamed(b, now_b)


def _paths(side: Side) -> list[str]:
    calls = side.calls
    codes = distinct(calls.module[(calls.kind == side.book.code("module")) & (calls.module >= 0)])[0]
    return [side.book.words[code] for code in codes.tolist() if code >= 0 and side.book.words[code]]


def _shorter(paths: dict[str, str]) -> dict[str, str] | None:
    """Return the paths without the outermost name that most of them begin with, or None where most share no name."""
    first = Counter(path.partition(".")[0] for path in paths.values())
    if not first:
        return None
    name, count = first.most_common(1)[0]
    if count < _SHARE * len(paths) or count < 2:
        return None
    return {path: now[len(name) + 1 :] if now.startswith(f"{name}.") else now for path, now in paths.items()}


def _agreement(paths: tuple[dict[str, str], dict[str, str]]) -> int:
    """Return how many paths both sides have."""
    paths_a, paths_b = paths
    return len(set(paths_a.values()) & set(paths_b.values()))


def _renamed(side: Side, paths: dict[str, str]) -> Side:
    """Return a side whose module calls are aligned by other paths; the names that reports show stay."""
    changed = {path: now for path, now in paths.items() if path != now}
    if not changed:
        return side
    op, book = side.calls.op.copy(), side.book
    is_module = side.calls.kind == book.code("module")
    for path, now in changed.items():
        op[is_module & (side.calls.module == book.code(path))] = book.code(f"path:{now}")
    return replace(side, calls=replace(side.calls, op=np.asarray(op)))
