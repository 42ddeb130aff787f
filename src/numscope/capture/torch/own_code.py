"""The one way to run our own code inside the user's job.

Capture and the guard run all their work between two operations of the job inside `OwnCode`, and inside `OwnComputation`
where they compute with tensors. The compiled functions set the same flag (`State.busy`) through a guard of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, TracebackType
from typing import Any, Protocol

import torch

from numscope.capture.torch.thread import ThreadState

# Before torch 2.6 it cannot be asked: they are then disabled twice.
_is_disabled: Callable[[], bool] = getattr(torch._C, "_is_torch_function_all_disabled", lambda: False)
_dynamo: Any = getattr(torch._C._dynamo, "eval_frame", None)  # what switches Dynamo in a thread


def _never() -> None:
    """Stand for the switch in a torch that has none."""


_switch: Any = getattr(_dynamo, "set_eval_frame", None)
_switched_on: Any = _never if _switch is None else getattr(_dynamo, "get_eval_frame_callback", _never)


class Watched(Protocol):
    """Owns the state of each thread, and counts the faults of our own code."""

    thread: ThreadState

    def fault(self, where: str, error: Exception) -> None:
        """Count a fault of our own, or raise it."""


class _Unwatched:
    """Stands in where no capture is at hand: function modes and Dynamo are off, and nothing is counted."""

    def __init__(self) -> None:
        self.thread = ThreadState()

    def fault(self, where: str, error: Exception) -> None:
        raise error


_UNWATCHED = _Unwatched()


class OwnCode:
    """Context manager around our own code: no part of the job sees it.

    - No function mode is called, ours or the user's.
    - Our dispatch mode, hooks and replaced functions pass calls on without recording them: they ask `State.busy`.
    - Dynamo neither traces nor compiles the Python functions that are called inside.
    - With `where`, a fault inside is counted under that name and the job goes on; without, it is raised.

    The job's grad mode stays, so that it can be asked for; see `OwnComputation`. Stretches may be nested.
    """

    __slots__ = ("_dynamo", "_guard", "_nested", "_state", "_watch", "_where")

    def __init__(self, watch: Watched = _UNWATCHED, where: str = "") -> None:
        self._watch = watch
        self._where = where

    def __enter__(self) -> None:
        state = self._state = self._watch.thread.here
        self._nested = nested = state.busy
        state.busy = True
        # A guard object can't be entered again before it is left, so that a nested stretch has one of its own, if any.
        self._guard = None if _is_disabled() else torch._C.DisableTorchFunction() if nested else state.guard
        if self._guard is not None:
            self._guard.__enter__()
        self._dynamo = _switched_on()
        if self._dynamo is not None:
            _switch(None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._dynamo is not None:
            _switch(self._dynamo)
        if self._guard is not None:
            self._guard.__exit__(None, None, None)
        self._state.busy = self._nested
        if error is None or not self._where or not isinstance(error, Exception):
            return False
        self._watch.fault(self._where, error)
        return True


class OwnComputation(OwnCode):
    """Context manager around our own code that computes with tensors: no autograd graph is made of it either."""

    __slots__ = ("_grad_mode",)

    def __enter__(self) -> None:
        super().__enter__()
        self._grad_mode = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        torch._C._set_grad_enabled(self._grad_mode)
        return super().__exit__(kind, error, trace)


class OwnOperators(OwnComputation):
    """Context manager around our own computation inside a dispatch mode: no such mode sees its operators either."""

    __slots__ = ("_below",)

    def __enter__(self) -> None:
        super().__enter__()
        self._below = torch._C._ExcludeDispatchKeyGuard(_PYTHON_KEYS)
        self._below.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._below.__exit__(None, None, None)
        return super().__exit__(kind, error, trace)


_PYTHON_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Python).add(torch._C.DispatchKey.PythonTLSSnapshot)
_marked: set[str] = set()  # modules whose functions Dynamo knows: it keeps that with the code, for good


def mark_own_functions() -> None:
    """Tell Dynamo, which is loaded, not to compile the functions of ours that the job may call, nor to ask about them.

    A region calls them where it breaks: a module is called then, or an operator, for which something of ours stands in.
    """
    skip: Callable[[CodeType], object] | None = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    if skip is None:
        return
    for name, module in list(sys.modules.items()):
        if name.startswith(("numscope.capture.", "numscope.fingerprint.")) and name not in _marked:
            for code in _codes_of(vars(module), name):
                skip(code)
            _marked.add(name)


def _codes_of(members: Mapping[str, object], module: str) -> Iterator[CodeType]:
    """Yield the code of all functions that a module or a class of it defines."""
    for member in list(members.values()):
        function = getattr(member, "__func__", getattr(member, "fget", member))
        function = getattr(function, "__wrapped__", function)
        if getattr(function, "__module__", None) != module:
            continue
        if isinstance(function, type):
            yield from _codes_of(vars(function), module)
        elif isinstance(function, FunctionType):
            yield from _codes_in(function.__code__)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)
