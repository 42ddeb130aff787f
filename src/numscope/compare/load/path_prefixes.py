"""Module paths of two models of which one is held by a further module: `model.layers.0` is `layers.0` of the other.

Libraries wrap a model once more than a hand-written one is, or call the wrapper something else. Where leaving out the
outermost name that most paths share makes more paths the same, calls are paired as if it were not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from numscope.compare.load.side import Side, distinct

_DEEPEST = 3
_SHARE = 0.5  # of the paths must begin with a name that is left out


def without_prefixes(a: Side, b: Side) -> tuple[Side, Side]:
    """Return the two sides with module calls that are told apart by paths without outermost names of one side alone."""
    paths_a, paths_b = _paths(a), _paths(b)
    if paths_a == paths_b:
        return a, b
    now_a, now_b = dict(zip(paths_a, paths_a)), dict(zip(paths_b, paths_b))
    for _ in range(_DEEPEST):
        ways = [
            (one, other)
            for one in (now_a, _shorter(now_a))
            for other in (now_b, _shorter(now_b))
            if one is not None and other is not None
        ]
        best = max(ways, key=lambda way: _same(way[0].values(), way[1].values()))  # the first of equals: as it is
        if best[0] is now_a and best[1] is now_b:
            break
        now_a, now_b = best
    return _renamed(a, now_a), _renamed(b, now_b)


def _paths(side: Side) -> list[str]:
    calls = side.calls
    codes = distinct(calls.module[(calls.kind == side.book.code("module")) & (calls.module >= 0)])[0]
    return [side.book.words[code] for code in codes.tolist() if code >= 0 and side.book.words[code]]


def _shorter(paths: dict[str, str]) -> dict[str, str] | None:
    """Return the paths without the outermost name that most of them have, None where there is none."""
    first = Counter(path.partition(".")[0] for path in paths.values())
    if not first:
        return None
    name, count = first.most_common(1)[0]
    if count < _SHARE * len(paths) or count < 2:
        return None
    return {path: now[len(name) + 1 :] if now.startswith(f"{name}.") else now for path, now in paths.items()}


def _same(one: Iterable[str], other: Iterable[str]) -> int:
    return len(set(one) & set(other))


def _renamed(side: Side, paths: dict[str, str]) -> Side:
    """Return a side whose module calls are known by other paths; how they are shown is left as it is."""
    changed = {path: now for path, now in paths.items() if path != now}
    if not changed:
        return side
    op, book = side.calls.op.copy(), side.book
    is_module = side.calls.kind == book.code("module")
    for path, now in changed.items():
        op[is_module & (side.calls.module == book.code(path))] = book.code(f"path:{now}")
    return replace(side, calls=replace(side.calls, op=np.asarray(op)))
