"""torch.compile: compiled regions run as they would without us; their boundaries are recorded, and the run says so.

Dynamo traces through whatever modes are on: ours would be compiled into the user's graph, or break it. So the mode is off
while a compiled region runs. Dynamo switches itself on and off for each region through one function, which tells us.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

import torch

from numscope.capture.torch.thread import Undo
from numscope.capture.torch.watch import Watch

# The frame that runs a region in torch 2.13 first switches dynamo off, then notes which dispatch keys are on, and puts them
# back at the end of the region: a mode must be off before that, and must not come back before it.
_WRAPPER = "compile_wrapper"
_FAKE = torch._C._TorchDispatchModeKey.FAKE
# A torch that has no flag is asked each time.
flags: Any = (
    torch.compiler if hasattr(torch.compiler, "_is_compiling_flag") else SimpleNamespace(_is_compiling_flag=True)
)
_modes = torch._C._len_torch_dispatch_stack
_traced = torch._C._is_tracing  # by torch.jit.trace


def is_tracing() -> bool:
    """Tell whether what runs now is being compiled or traced: its tensors have no data, or ours would be in the graph."""
    if torch.compiler.is_compiling():  # Dynamo takes this call for True; a flag read here would be False to it
        return True
    return (_modes() > 0 and torch._C._get_dispatch_mode(_FAKE) is not None) or _traced()


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

        def set_eval_frame(callback: Any) -> Any:
            self._switched(sys._getframe(1), callback is not None and callback is not False)
            return original(callback)

        names = [name for name in ("set_eval_frame", "_maybe_set_eval_frame") if vars(module).get(name) is original]
        for name in names:
            setattr(module, name, set_eval_frame)

        def undo() -> None:
            for name in names:
                setattr(module, name, original)

        return undo

    def _switched(self, frame: FrameType, inside: bool) -> None:
        """Dynamo switches itself, in the frame that runs a region: it does so while it compiles, too."""
        thread = self._watch.thread
        caller = id(frame)
        if thread.here.compiled == caller:
            if inside:
                self._unseen()
                thread.here.switches = 1
            elif thread.here.switches == 1 and frame.f_code.co_name == _WRAPPER:
                thread.here.switches = 2  # the region has ended, but the dispatch keys are not back yet
            else:
                thread.here.compiled = 0
                if self._watch.on:
                    self._enter()
        elif thread.here.entered and (inside or frame.f_code.co_name == _WRAPPER):
            self._leave()
            thread.here.compiled = caller
            thread.here.switches = int(inside)
            if inside:
                self._unseen()

    def _unseen(self) -> None:
        self._watch.tensors.drop_all_carried_over()  # it may write to any of them without a new version
        if self._watch.on:
            self._watch.recorder.skip("compiled region: its inside is not seen")
