"""Launching compiled Triton kernels with the least work of the host."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

try:
    from triton.language.extra.cuda import gdc_wait
except ImportError:  # an older Triton, or one for other devices
    gdc_wait = None

_MARKS = ("first", "last")  # stand in for a kernel's arguments


class Launch(NamedTuple):
    """What launches a kernel: `call(programs, 1, 1, stream, *fixed, *arguments)`."""

    call: Callable[..., None]
    fixed: tuple[Any, ...]

    def __call__(self, programs: int, stream: int, *arguments: int) -> None:
        """Launch so many programs."""
        self.call(programs, 1, 1, stream, *self.fixed, *arguments)


def launch_of(compiled: Any) -> Launch:
    """Return what launches a compiled kernel: binding the arguments anew each time would cost 10 µs.

    Triton's launcher is a Python function around a compiled one; what it hands on besides the arguments depends on its
    version. It is asked once, with a stand-in for the compiled one; where that is the same for every launch, the compiled
    one is called directly.
    """
    run = compiled.run  # makes the function, too
    fixed = (compiled.function, compiled.packed_metadata, None, None, None)
    handed: list[tuple[Any, ...]] = []
    if not callable(getattr(run, "launch", None)):
        return Launch(run, fixed)
    try:
        asked = copy.copy(run)
        asked.launch = lambda *all_of_it: handed.append(all_of_it)
        asked(1, 1, 1, 0, *fixed, *_MARKS)
        grid_and_stream, between, marks = handed[0][:4], handed[0][4:-2], handed[0][-2:]
        constant = all(value is None or value in (True, False) or value in fixed for value in between)
        if grid_and_stream == (1, 1, 1, 0) and marks == _MARKS and constant:
            return Launch(run.launch, between)
    except Exception:  # another launcher: its own function does it
        pass
    return Launch(run, fixed)


def can_be_early(device: torch.device) -> bool:
    """Return whether kernels can be launched before the ones before them have ended, and then wait for these themselves.

    That is what `launch_pdl` means: 1.4 µs of a launch pass while the kernel before still runs.
    """
    if gdc_wait is None or device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)
