"""torch.compile: compiled regions run as they would without us; their boundaries are recorded, and the run says so.

Dynamo traces through whatever modes are on: ours would be compiled into the user's graph, or break it. So the mode is off
while a compiled region runs. Dynamo switches itself on and off for each region through one function, which tells us.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from numscope.capture.torch.watch import Undo, Watch

_FAKE = torch._C._TorchDispatchModeKey.FAKE


def is_tracing() -> bool:
    """Tell whether what runs now is being compiled: its tensors have no data."""
    return torch.compiler.is_compiling() or torch._C._get_dispatch_mode(_FAKE) is not None


class CompiledRegions:
    """Switches the mode off inside compiled regions."""

    def __init__(self, watch: Watch, leave: Callable[[], None], enter: Callable[[], None]) -> None:
        self._watch = watch
        self._leave = leave
        self._enter = enter

    def install(self) -> Undo:
        """Replace dynamo's switch; return what puts it back. Dynamo is not loaded for it."""
        module: Any = sys.modules.get("torch._dynamo.eval_frame")
        if module is None:
            return lambda: None
        original = module.set_eval_frame
        thread = self._watch.thread

        def set_eval_frame(callback: Any) -> Any:
            inside = callback is not None and callback is not False
            caller = id(sys._getframe(1))  # the frame that runs the region; dynamo switches while it compiles, too
            if inside and thread.entered:
                self._leave()
                thread.compiled = caller
                if self._watch.on:
                    self._watch.recorder.skip("compiled region: its inside is not seen")
            elif not inside and thread.compiled == caller:
                thread.compiled = 0
                if self._watch.on:
                    self._enter()
            return original(callback)

        names = [name for name in ("set_eval_frame", "_maybe_set_eval_frame") if vars(module).get(name) is original]
        for name in names:
            setattr(module, name, set_eval_frame)

        def undo() -> None:
            for name in names:
                setattr(module, name, original)

        return undo
