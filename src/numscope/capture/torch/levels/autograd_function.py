"""autograd.Function: the user's own operators, a call each, with the calls of their forward inside."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from numscope.capture.torch.levels.api import record_call
from numscope.capture.torch.levels.compiled import is_tracing
from numscope.capture.torch.levels.function_names import Api
from numscope.capture.torch.patching import replace
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.watch import Watch

# Functions of torch's own that are no operator of the user's.
_TRANSPARENT = {"CheckpointFunction", "_NoopSaveInputs", "BackwardHookFunction"}
_GENERATED = "GeneratedBackwardFor_"  # what torch.library makes for an operator, which is a call itself


class Functions:
    """Records `Function.apply`, which no mode sees."""

    def __init__(self, watch: Watch, record: Callable[..., Any] = record_call) -> None:
        self._watch = watch
        self._record = record
        self._known: dict[type, Api] = {}

    def install(self) -> Undo:
        """Replace `Function.apply`; return what puts it back."""
        plain = torch.autograd.Function.__dict__["apply"].__func__

        def apply(cls: Any, /, *args: object, **kwargs: object) -> Any:
            watch = self._watch
            thread = watch.thread
            off = thread.here.busy or thread.here.quiet or not (watch.on and watch.forward_on)
            if off or cls.__name__ in _TRANSPARENT or cls.__name__.startswith(_GENERATED) or is_tracing():
                return plain(cls, *args, **kwargs)
            return self._record(
                watch, self._api(cls), lambda: plain(cls, *args, **kwargs), args, kwargs, sys._getframe(1)
            )

        return replace(torch.autograd.Function, "apply", classmethod(apply))

    def _api(self, cls: type) -> Api:
        found = self._known.get(cls)
        if found is None:
            found = self._known[cls] = Api("Function", cls.__name__, cls, False)
            found.composite = True
        return found
