"""Python's collector while a job is watched.

What a step's calls leave lives until the step ends. Python counts it as new and long-lived: it walks the young objects a few
times in every step, and every ten steps or so all objects of the process, which takes a tenth of a second with a framework
loaded, where the job by itself makes next to no objects and never comes to that. So the walks are put off by as much as
watching brings them nearer. A `gc.collect()` of the job's own goes on as it is.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

_YOUNG = 5
_OLD = 4  # on top of that: 20 times in all

_lock = threading.Lock()
_users = 0
_before: tuple[int, int, int] | None = None
_ours: tuple[int, int, int] | None = None  # what was put in its place
_MOST = 200_000  # objects that a step may have besides before the young ones are walked


def _rarer(young: int, middle: int, old: int, besides: int = 0) -> tuple[int, int, int]:
    return young * _YOUNG + besides, middle, old * _OLD


def rarer_walks() -> Callable[[], None]:
    """Have walks come more rarely; return what undoes it, unless the job has set thresholds of its own since."""
    global _users, _before
    with _lock:
        _users += 1
        before = gc.get_threshold()
        if _users == 1 and before[2] > 0:
            _before = before
            _set(_rarer(*before))
    return _undo


def make_room(objects: int) -> None:
    """Have no walk come for that many objects of our own that live until the step ends."""
    if _ours is None or _before is None:
        return
    besides = min(objects, _MOST)
    if _ours[0] < _rarer(*_before, besides)[0]:
        with _lock:
            if _before is not None and gc.get_threshold() == _ours:
                _set(_rarer(*_before, besides + besides // 4))  # steps differ


def _set(thresholds: tuple[int, int, int]) -> None:
    global _ours
    _ours = thresholds
    gc.set_threshold(*thresholds)


def _undo() -> None:
    global _users, _before, _ours
    with _lock:
        _users -= 1
        if _users == 0 and _before is not None:
            if gc.get_threshold() == _ours:
                gc.set_threshold(*_before)
            _before = _ours = None
