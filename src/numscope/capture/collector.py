"""Python's collector while a job is watched.

What a step's calls leave lives until the step ends. Python counts it as new and long-lived, and every ten steps or so walks all
objects of the process, which takes a tenth of a second with a framework loaded, where the job by itself makes next to no
objects and never comes to that. So the full walk is put off by as much as watching brings it nearer. The walks over young
objects go on as they are, and so does a `gc.collect()` of the job's own.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

_RARER = 20

_lock = threading.Lock()
_users = 0
_before: tuple[int, int, int] | None = None


def rarer_walks() -> Callable[[], None]:
    """Have full walks come more rarely; return what undoes it, unless the job has set thresholds of its own since."""
    global _users, _before
    with _lock:
        _users += 1
        young, middle, old = gc.get_threshold()
        if _users == 1 and old > 0:
            _before = young, middle, old
            gc.set_threshold(young, middle, old * _RARER)
    return _undo


def _undo() -> None:
    global _users, _before
    with _lock:
        _users -= 1
        if _users == 0 and _before is not None:
            young, middle, old = _before
            if gc.get_threshold() == (young, middle, old * _RARER):
                gc.set_threshold(young, middle, old)
            _before = None
