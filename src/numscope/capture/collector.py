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


def _rarer(young: int, middle: int, old: int) -> tuple[int, int, int]:
    return young * _YOUNG, middle, old * _OLD


def rarer_walks() -> Callable[[], None]:
    """Have walks come more rarely; return what undoes it, unless the job has set thresholds of its own since."""
    global _users, _before
    with _lock:
        _users += 1
        young, middle, old = gc.get_threshold()
        if _users == 1 and old > 0:
            _before = young, middle, old
            gc.set_threshold(*_rarer(young, middle, old))
    return _undo


def _undo() -> None:
    global _users, _before
    with _lock:
        _users -= 1
        if _users == 0 and _before is not None:
            young, middle, old = _before
            if gc.get_threshold() == _rarer(young, middle, old):
                gc.set_threshold(young, middle, old)
            _before = None
