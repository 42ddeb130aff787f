"""The state of one thread of the user's job: the calls that are open in it, and which code runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

Undo = Callable[[], None]


class Backward(Protocol):
    """The backward part of an open call."""

    def begin(self, state: State | None = None) -> int:
        """Return its order, recording it where it is not yet; `state`: of this thread."""


class Open:
    """A call that has begun and not ended: a module, or a composite function."""

    __slots__ = ("backward", "module", "module_class", "op", "order", "path", "site")

    def __init__(
        self, order: int, module: int, module_class: int, path: str, site: int, op: str, backward: Backward | None
    ) -> None:
        self.order = order
        self.module = module
        self.module_class = module_class
        self.path = path
        self.site = site
        self.op = op  # of a composite function; empty for a module
        self.backward = backward


class State:
    """The open calls of one thread, and which code runs in it."""

    # Slots: each of these is asked at each call, and a dictionary takes several times as long.
    __slots__ = (
        "busy",
        "calling",
        "collective",
        "entered",
        "guard",
        "held",
        "known_tensors",
        "last",
        "number",
        "optimizer_step",
        "quiet",
        "region",
        "stack",
        "under",
        "verifying",
    )

    def __init__(self) -> None:
        self.stack: list[Open] = []
        # Our own code runs: now (`own_code.py` sets it), or always, in a thread of the writer's.
        self.busy = threading.current_thread().name.startswith("numscope")
        self.guard = torch._C.DisableTorchFunction()  # entered by the outermost stretch of our own code alone
        self.quiet: Any = None  # an optimizer's step runs: it is one call, no torch function inside it is seen
        self.optimizer_step: Any = None  # … the same step, where nothing but its operators writes to what it works on
        # By id, while nothing but torch's own code and ours runs: torch need not be asked of these tensors again.
        self.known_tensors: Any = None
        self.entered = False  # the mode is on in this thread
        self.verifying = False  # the mode that verifies is on in this thread
        self.under: dict[int, tuple[Any, ...]] = {}  # of a mode that was left, the modes that were above it
        self.region: Any = None  # the compiled region that runs, see `levels/compiled.py`
        self.calling = -1  # the order of the function or operator that runs, where verify asks
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
        self.optimizer_step = self.known_tensors = None
        if self.quiet is not None:
            self.quiet.__exit__(None, None, None)
            self.quiet = None


class ThreadState(threading.local):
    """The state of the thread that asks."""

    def __init__(self) -> None:
        self.here = State()
