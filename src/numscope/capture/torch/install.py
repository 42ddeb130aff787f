"""The installation in torch that capture and guard share, and its undoing."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch
from torch import overrides
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as _dispatch_modes

from numscope.capture.collector import rarer_walks
from numscope.capture.torch.levels.compiled import CompiledRegions
from numscope.capture.torch.levels.modules import Modules
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.warning_lines import name_users_lines
from numscope.capture.torch.watch import Watch

# A collective's work remembers the modes that were on when it began. Its thread lets go of them when it is done, needs
# Python for that, and ends the process with an abort if Python is being shut down by then: so it gets its turn.
_LETTING_GO = 0.02  # seconds; a thread that wants Python's lock has it within 0.005


def _is_in_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


Mode = TorchFunctionMode | TorchDispatchMode


class Part(Protocol):
    """Something else that is installed in torch."""

    def install(self) -> Undo:
        """Install it; return what undoes that."""


class Installed:
    """Something that watches torch while it is installed: through a mode, if it has one, and through its parts."""

    name = "torch"

    def __init__(
        self,
        watch: Watch,
        models: dict[str, torch.nn.Module],
        modules: Modules,
        mode: TorchFunctionMode | TorchDispatchMode | None,
        below: TorchDispatchMode | None = None,
    ) -> None:
        self.watch = watch
        self.models = models
        self.modules = modules
        self._mode = mode
        self._below = below  # a second mode, below that one: it sees operators as they run
        self._undo: list[Undo] = []
        self.regions = CompiledRegions(watch, self._leave_mode, self._enter_mode)
        self._in_group = False

    def install(self, *parts: Part) -> None:
        """Install modules, the parts and the mode, in this order."""
        self._in_group = _is_in_group()
        self._undo = [
            rarer_walks(),
            name_users_lines(),
            self.modules.install(self._mode),
            *(part.install() for part in parts),
        ]
        if self._mode is not None or self._below is not None:
            self._enter_mode()
            self._undo.append(self._leave_mode)
        self._undo.append(self.regions.install())

    def stop(self) -> None:
        """Undo everything that install did."""
        self.watch.on = False
        while self._undo:
            self._undo.pop()()
        self.watch.thread.here.end_quiet()
        if self._mode is not None and (self._in_group or _is_in_group()):
            time.sleep(_LETTING_GO)

    def devices(self) -> list[str]:
        """Return the devices of the models' parameters, with their names where torch knows them."""
        found = sorted({str(p.device) for model in self.models.values() for p in model.parameters()} or {"cpu"})
        named = []
        for device in found:
            module = getattr(torch, device.partition(":")[0], None)
            try:
                named.append(f"{device} ({module.get_device_name(device)})" if module is not None else device)
            except Exception:
                named.append(device)
        return named

    def _enter_mode(self) -> None:
        here = self.watch.thread.here
        if self._below is not None and not here.verifying:
            self._below.__enter__()
            here.verifying = True
        if self._mode is not None and not here.entered:  # it is on where capture began again inside a region
            self._mode.__enter__()  # type: ignore[no-untyped-call]
            here.entered = True

    def _leave_mode(self) -> None:
        """Take our modes off the stack, wherever on it the user's own modes have put them."""
        here = self.watch.thread.here
        if self._mode is not None and here.entered and _take_off(self._mode):
            here.entered = False
        if self._below is not None and here.verifying and _take_off(self._below):
            here.verifying = False


def _take_off(mode: Mode) -> bool:
    """Take a mode off its stack; false where torch has taken it off while it is called, and puts it back itself."""
    is_function_mode = isinstance(mode, TorchFunctionMode)
    stack: Any = overrides._get_current_function_mode_stack() if is_function_mode else _dispatch_modes()
    if not any(one is mode for one in stack):
        return False
    above = []
    for one in reversed(stack):
        one.__exit__(None, None, None)
        if one is mode:
            break
        above.append(one)
    for one in reversed(above):
        one.__enter__()
    return True
