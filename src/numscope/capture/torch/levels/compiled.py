"""torch.compile: compiled regions run as they would without us; their boundaries are recorded, and the run says so.

Dynamo sees nothing of ours:

- While a region runs, no mode of ours is on: Dynamo traces through whatever modes are on, and guards on them. It switches
  itself on and off for each region through one function, which tells us.
- While a region is traced and compiled, and while Dynamo is loaded, all that we have replaced in torch is set aside.
- Our Python functions that a region calls after all, because it breaks there, are marked as not to be compiled.

Dynamo is not loaded for this: where it is not yet, its import is watched.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import wraps
from types import CodeType, FrameType, FunctionType, SimpleNamespace
from typing import Any

import torch
from torch.optim import Optimizer

from numscope.capture.torch import patching
from numscope.capture.torch.autograd.compiled_autograd import CompiledAutograd
from numscope.capture.torch.levels.step_hooks import region_begins, region_ends
from numscope.capture.torch.own_code import mark_own_functions
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.watch import Watch

_DYNAMO = "torch._dynamo"
_SWITCH = f"{_DYNAMO}.eval_frame"  # the module whose function switches Dynamo on and off in a thread
_SWITCHES = ("set_eval_frame", "_maybe_set_eval_frame")
_FAKE = torch._C._TorchDispatchModeKey.FAKE
# A torch that has no flag is asked each time.
flags: Any = (
    torch.compiler if hasattr(torch.compiler, "_is_compiling_flag") else SimpleNamespace(_is_compiling_flag=True)
)
# Before torch 2.3 it is of torch's inside.
_is_compiling: Callable[[], bool] = getattr(
    torch.compiler if hasattr(torch.compiler, "is_compiling") else torch._utils, "is_compiling", lambda: False
)
_UNKNOWN = "this torch does not tell when a compiled region runs: nothing is recorded where something is compiled"
_BACKWARD = "CompiledFunctionBackward"  # the node of a compiled region; the engine's threads have our modes on
_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_modes = torch._C._len_torch_dispatch_stack
_traced = torch._C._is_tracing  # by torch.jit.trace


def is_in_compiled_backward() -> bool:
    """Tell whether the backward of a compiled region runs: what we allocated there would be in its pool of CUDA graphs."""
    return _task() != -1 and type(_node()).__name__ == _BACKWARD


def is_tracing() -> bool:
    """Tell whether what runs now is no call: it is traced, so that its tensors have no data, or it is inside a region."""
    if is_in_compiled_backward():
        return True
    if flags._is_compiling_flag and _is_compiling():
        return True
    return is_faked() or _traced()


def is_faked() -> bool:
    """Tell whether tensors have no data now: something traces with fake ones."""
    return _modes() > 0 and torch._C._get_dispatch_mode(_FAKE) is not None


class Region:
    """A compiled region that runs in a thread, from the frame that switches Dynamo on for it.

    That frame switches Dynamo off, on for the region, off again, and back to what it was; in older torch the first and the
    third are missing. Between the first and the last, the dispatch keys are the frame's: it notes which are on, and puts
    them back. So our mode is off from the first to the last. A frame that never switches Dynamo on is that of a function
    which is not to be compiled.
    """

    __slots__ = ("begun", "entered", "frame", "stepping", "switched_off")

    def __init__(self, frame: FrameType, entered: bool) -> None:
        self.frame = frame
        self.entered = entered  # our mode was on, and is to be on again
        self.begun = False
        self.stepping: Optimizer | None = None  # whose step it is
        self.switched_off = 0  # how often before the region; as often after it, and then back


class CompiledRegions:
    """Keeps everything of ours away from Dynamo, and notes where compiled regions run."""

    def __init__(self, watch: Watch, leave: Callable[[], None], enter: Callable[[], None]) -> None:
        self._watch = watch
        self._leave = leave
        self._enter = enter
        self._users = 0  # the capture, and what counts its steps: that also sees the steps that are not recorded
        self._undo: list[Undo] = []
        self._between: set[CodeType] = set()  # functions of Dynamo's between the frame of a region and the switch
        self.gave_way = False  # nothing is recorded any more

    def install(self) -> Undo:
        """Watch Dynamo, now or when it is loaded; return what ends that."""
        self._users += 1
        if self._users == 1 and _SWITCH in sys.modules:
            self._watch_dynamo(is_loaded=True)
        elif self._users == 1:
            self._undo.append(patching.when_imported(_DYNAMO, self._watch_dynamo))
        return patching.together([self._end])

    def _end(self) -> None:
        self._users -= 1
        if self._users == 0:
            patching.together(self._undo)()
            self._undo.clear()

    def _watch_dynamo(self, is_loaded: bool = False) -> None:
        module: Any = sys.modules.get(_SWITCH)
        original = getattr(module, "set_eval_frame", None)
        handler: Any = getattr(sys.modules.get(f"{_DYNAMO}.callback"), "callback_handler", None)
        if original is None:
            self._give_way_to_compile(is_loaded)
            return
        mark_own_functions()
        switched, sys_frame = self._switched, sys._getframe

        def set_eval_frame(callback: Any) -> Any:
            switched(sys_frame(1), callback is not None)
            return original(callback)

        self._between = {
            function.__code__ for name in _SWITCHES if isinstance(function := vars(module).get(name), FunctionType)
        }
        for name in _SWITCHES:
            if vars(module).get(name) is original:
                self._undo.append(patching.keep(module, name, set_eval_frame))
        optimized: Any = getattr(module, "OptimizedModule", None)
        if "_initialize" in vars(optimized or object):
            self._undo.append(_set_aside_in(optimized, "_initialize"))
        self._undo += CompiledAutograd(self._watch, self._leave, self._enter).install()
        self._handler = handler
        if handler is not None:
            self._undo.append(self._forget_compilations)

    def _give_way_to_compile(self, is_loaded: bool) -> None:
        """In a torch that does not tell when a region runs, record nothing once something is compiled, or may be."""
        here: FrameType | None = sys._getframe()
        while here is not None and here.f_code is not torch.compile.__code__:
            here = here.f_back
        if is_loaded or here is not None:
            self._give_way()
            return
        original = torch.compile

        @wraps(original)
        def compile_(*args: Any, **kwargs: Any) -> Any:
            if not self.gave_way:
                self._give_way()
            return original(*args, **kwargs)

        self._undo.append(patching.keep(torch, "compile", compile_))

    def _give_way(self) -> None:
        self._leave()
        if not self._is_aside:
            patching.set_aside()
            self._is_aside = True
            self._undo.append(self._put_back)
        self._watch.on = False
        if not self.gave_way:
            self.gave_way = True
            self._watch.recorder.skip(_UNKNOWN, fault=True)
            warnings.warn(f"numscope: {_UNKNOWN}; training goes on", stacklevel=2)

    def _put_back(self) -> None:
        self._is_aside = False
        patching.put_back()

    # Compilations -------------------------------------------------------------------------------------------------

    _handler: Any = None
    _is_aside = False  # all that we have replaced in torch: for good, or while a region runs

    def _watch_compilations(self) -> None:
        """Have torch's own functions in their places while Dynamo traces and compiles. A reset of Dynamo forgets that."""
        handler = self._handler
        if handler is not None and _compilation_begins not in handler.start_callbacks:
            handler.register_start_callback(_compilation_begins)
            handler.register_end_callback(_compilation_ends)

    def _forget_compilations(self) -> None:
        handler = self._handler
        for callbacks, ours in (
            (handler.start_callbacks, _compilation_begins),
            (handler.end_callbacks, _compilation_ends),
        ):
            if ours in callbacks:
                callbacks.remove(ours)

    # Regions ------------------------------------------------------------------------------------------------------

    def _switched(self, frame: FrameType, on: bool) -> None:
        """Dynamo switches itself on or off in a frame, see `Region`."""
        while frame.f_code in self._between and frame.f_back is not None:
            frame = frame.f_back
        here = self._watch.thread.here
        region = here.region
        if region is not None and region.frame is not frame and region.frame.f_back is None:
            region.frame = frame  # Dynamo was switched on by a context manager, and is switched off by it: see `Region`
        if region is None:
            if here.busy:
                return
            entered = here.entered or here.verifying
            self._leave()
            region = here.region = Region(frame, entered and not (here.entered or here.verifying))
            if on:
                self._begin(region)
            else:
                region.switched_off = 1
        elif region.frame is not frame:
            if on:  # a region in a region
                self._unseen()
        elif on and not region.begun:
            self._begin(region)
        elif region.begun and region.switched_off:
            region.switched_off = 0
        else:
            here.region = None
            if region.begun:
                region_ends(frame, region.stepping)
                if self._handler is None:
                    patching.put_back()
            if region.entered and self._watch.on:
                self._enter()

    def _begin(self, region: Region) -> None:
        region.begun = True
        region.stepping = region_begins(region.frame)
        if self._handler is None:  # it does not tell when it compiles
            patching.set_aside()
        self._watch_compilations()
        self._unseen()
        if self._watch.on:
            self._watch.recorder.skip("compiled region: its inside is not seen")

    def _unseen(self) -> None:
        self._watch.tensors.drop_all_carried_over()  # a region may write to any of them without a new version


def _compilation_begins(*_: object) -> None:
    patching.set_aside()


def _compilation_ends(*_: object) -> None:
    patching.put_back()


def _set_aside_in(owner: type, name: str) -> Undo:
    """Have torch's own functions in their places inside a method: what it takes hold of must not be ours."""
    original = vars(owner)[name]

    def method(*args: Any, **kwargs: Any) -> Any:
        with patching.aside():
            return original(*args, **kwargs)

    return patching.replace(owner, name, method)
