"""What is open in a thread of the user's job, and the stretches of our own code in it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

Undo = Callable[[], None]


class Open:
    """A call that has begun and not ended: a module, or a composite function."""

    __slots__ = ("backward", "module", "module_class", "op", "order", "path", "site")

    def __init__(
        self, order: int, module: int, module_class: int, path: str, site: int, op: str, backward: Any
    ) -> None:
        self.order = order
        self.module = module
        self.module_class = module_class
        self.path = path
        self.site = site
        self.op = op  # of a composite function; empty for a module
        self.backward = backward


class State:
    """What is open in one thread."""

    # Slots: each of these is asked at each call, and a dictionary takes several times as long.
    __slots__ = (
        "asked", "busy", "collective", "compiled", "entered", "guard", "held", "last", "number", "quiet", "stack",
        "stepping", "switches",
    )  # fmt: skip

    def __init__(self) -> None:
        self.stack: list[Open] = []
        # Our own code runs: now, or always, in a thread of the writer's.
        self.busy = threading.current_thread().name.startswith("numscope")
        self.guard = torch._C.DisableTorchFunction()  # around it; it is never inside itself
        self.quiet: Any = None  # an optimizer's step runs: it is one call, no torch function inside it is seen
        self.stepping: Any = None  # … the same step, where nothing but its operators writes to what it works on
        self.asked: Any = None  # what torch has told of tensors while only its own code and ours runs, see `lists.py`
        self.entered = False  # the mode is on in this thread
        self.compiled = 0  # it was, until the compiled region of this frame began
        self.switches = 0  # how often dynamo has switched itself in that frame
        self.collective = False  # a collective that is recorded runs: the operators in it are the same call
        self.number = -1
        self.last: Any = None  # what the guard looked at last
        self.held: Any = None  # and what it holds of that

    def begin_quiet(self) -> None:
        """Let no mode see what follows, up to `end_quiet`."""
        if self.quiet is None:
            self.quiet = torch._C.DisableTorchFunction()
            self.quiet.__enter__()

    def end_quiet(self) -> None:
        """Let modes see again."""
        self.stepping = self.asked = None
        if self.quiet is not None:
            self.quiet.__exit__(None, None, None)
            self.quiet = None


class ThreadState(threading.local):
    """The state of the thread that asks."""

    def __init__(self) -> None:
        self.here = State()


class Watched(Protocol):
    """What our own work is done for: it knows its threads, and counts faults."""

    thread: ThreadState

    def fault(self, where: str, error: Exception) -> None:
        """Count a fault of our own."""


class OwnWork:
    """A stretch of our own code inside the user's job: nothing of it is seen, and a fault in it is only counted."""

    __slots__ = ("_guard", "_watch", "_where")

    def __init__(self, watch: Watched, where: str) -> None:
        self._watch = watch
        self._where = where

    def __enter__(self) -> None:
        state = self._watch.thread.here
        state.busy = True
        self._guard = state.guard
        self._guard.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        self._guard.__exit__(None, None, None)
        self._watch.thread.here.busy = False
        if error is None or not isinstance(error, Exception):
            return False
        self._watch.fault(self._where, error)
        return True
