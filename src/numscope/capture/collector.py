"""Python's garbage collector while a job is watched.

The objects that capture makes for a call live until the step ends. The collector counts them as young objects that
survive: it walks the young generation a few times in every step, and every ten steps or so all objects of the process,
which takes a tenth of a second with a framework loaded. The job by itself makes next to no objects and never gets that
far. So the thresholds are raised by as much as watching brings the walks nearer. A `gc.collect()` of the job's own is
left alone.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import NamedTuple

_YOUNG = 5  # factors of the thresholds
_OLD = 4  # on top of the young generation's: 20 times in all


class Thresholds(NamedTuple):
    """The collector's thresholds, as `gc.get_threshold` returns them."""

    young: int
    middle: int
    old: int


_lock = threading.Lock()
_users = 0
_before: Thresholds | None = None  # the job's
_ours: Thresholds | None = None  # set in their place
_MOST = 200_000  # extra objects that a step may have before the young generation is walked


def _raised(job: Thresholds, extra: int = 0) -> Thresholds:
    return Thresholds(job.young * _YOUNG + extra, job.middle, job.old * _OLD)


def rarer_walks() -> Callable[[], None]:
    """Raise the thresholds; return a function that restores them, unless the job has set its own since."""
    global _users, _before
    with _lock:
        _users += 1
        before = Thresholds(*gc.get_threshold())
        if _users == 1 and before.old > 0:
            _before = before
            _set(_raised(before))
    return _undo


def make_room(objects: int) -> None:
    """Raise the threshold of the young generation by the number of our own objects that live until the step ends."""
    if _ours is None or _before is None:
        return
    extra = min(objects, _MOST)
    if _ours.young < _raised(_before, extra).young:
        with _lock:
            if _before is not None and gc.get_threshold() == _ours:
                _set(_raised(_before, extra + extra // 4))  # steps differ


def _set(thresholds: Thresholds) -> None:
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
