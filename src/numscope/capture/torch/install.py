"""The installation in torch that capture and guard share, and its undoing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import overrides
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as _dispatch_modes

from numscope.capture.collector import rarer_walks
from numscope.capture.torch.levels.compiled import CompiledRegions
from numscope.capture.torch.levels.modules import Modules
from numscope.capture.torch.thread import State, Undo
from numscope.capture.torch.warning_lines import name_users_lines
from numscope.capture.torch.watch import Watch

# A collective's work remembers the modes that were on when it began. Its thread lets go of them when it is done, needs
# Python for that, and ends the process with an abort if Python is being shut down by then: so it gets its turn.
_LETTING_GO = 0.02  # seconds; a thread that wants Python's lock has it within 0.005


def _is_in_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


Mode = TorchFunctionMode | TorchDispatchMode

# What takes the uppermost mode off its stack, and puts one on it; of functions, and of what is dispatched.
_STACKS: dict[bool, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    True: (overrides._pop_mode, overrides._push_mode),
    False: (_python_dispatch._pop_mode, _python_dispatch._push_mode),
}


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
        """Put our mode on the stack: on top, or where it was left, under the modes that were above it then."""
        here = self.watch.thread.here
        if self._below is not None and not here.verifying:
            _put_on(self._below, here)
            here.verifying = True
        if self._mode is not None and not here.entered:  # it is on where capture began again inside a region
            _put_on(self._mode, here)
            here.entered = True

    def _leave_mode(self) -> None:
        """Take our modes off the stack, wherever on it the modes of others have put them."""
        here = self.watch.thread.here
        if self._mode is not None and here.entered and _take_off(self._mode, here):
            here.entered = False
        if self._below is not None and here.verifying and _take_off(self._below, here):
            here.verifying = False


def _put_on(mode: Mode, here: State) -> None:
    """Put a mode on its stack: on top, or where it was left, under the modes that were above it then."""
    above = here.under.pop(id(mode), ())
    lowest = next((one for one in _stack_of(mode) if any(one is other for other in above)), None)
    with _without_modes_from(lowest):
        mode.__enter__()  # type: ignore[no-untyped-call]


def _take_off(mode: Mode, here: State) -> bool:
    """Take a mode off its stack; false where torch has taken it off while it is called, and puts it back itself."""
    stack = _stack_of(mode)
    place = next((index for index, one in enumerate(stack) if one is mode), None)
    if place is None:
        return False
    here.under[id(mode)] = above = tuple(stack[place + 1 :])
    with _without_modes_from(above[0] if above else None):
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    return True


def _stack_of(mode: Mode) -> list[Mode]:
    is_function_mode = isinstance(mode, TorchFunctionMode)
    return list(overrides._get_current_function_mode_stack() if is_function_mode else _dispatch_modes())


@contextmanager
def _without_modes_from(lowest: Mode | None) -> Iterator[None]:
    """Have a mode and those above it off the stack: they are neither entered nor left, of which some take notice."""
    pop, push = _STACKS[isinstance(lowest, TorchFunctionMode)]
    above: list[Mode] = []
    while lowest is not None and not (above and above[-1] is lowest):
        above.append(pop())
    try:
        yield
    finally:
        for mode in reversed(above):
            push(mode)
