"""Launching compiled Triton kernels with the least work of the host."""

from __future__ import annotations

import copy
import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch

try:
    from triton.language.extra.cuda import gdc_wait
except ImportError:  # an older Triton, or one for other devices
    gdc_wait = None

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

_MARKS = ("first", "last")  # stand in for a kernel's arguments
_HIDDEN = 3  # arguments that Triton adds at the most: memory that our kernels do not ask for
_THREADS = 0  # the driver's number of that attribute of a function: how many threads a program may have


class Used(ctypes.Structure):
    """The used part of a stream's lines and of its ring of records; native_launch.c has its address."""

    _fields_ = [
        ("lines", ctypes.c_int64),
        ("records", ctypes.c_int64),
        ("most_lines", ctypes.c_int64),
        ("most_records", ctypes.c_int64),
        ("about", ctypes.c_void_p),
    ]


class Direct(NamedTuple):
    """A kernel for CUDA's driver to launch; all of its arguments have 8 bytes."""

    driver: int  # the address of cuLaunchKernelEx
    function: int
    threads: int
    shared: int
    early: bool
    takes: int  # arguments

    def packed(
        self, used: Used, programs: int, stream: int, sizes: tuple[int, int], arguments: Sequence[int], line: int
    ) -> bytes | None:
        """Return the description, for native_launch.c, of launches that differ in the first argument and in two from `line` on.

        `sizes`: the tensor's elements and its real elements, which it notes of each launch.
        """
        hidden = self.takes - len(arguments)
        if not 0 <= hidden <= _HIDDEN:
            return None
        how = programs, self.threads, self.shared, self.early, *sizes, line, self.takes
        head = self.driver, self.function, stream, ctypes.addressof(used), *how
        return struct.pack(f"={len(head) + self.takes}q", *head, *arguments, *[0] * hidden)


class Launch(NamedTuple):
    """A launch of a compiled kernel: `call(programs, 1, 1, stream, *fixed, *arguments)`."""

    call: Callable[..., None]
    fixed: tuple[object, ...]
    direct: Direct | None = None

    def __call__(self, programs: int, stream: int, *arguments: int) -> None:
        """Launch this many programs."""
        self.call(programs, 1, 1, stream, *self.fixed, *arguments)


def launch_of(compiled: CompiledKernel) -> Launch:
    """Return the launch of a compiled kernel: binding the arguments anew each time would cost 10 µs.

    Triton's launcher is a Python function around a compiled one; what it passes on besides the arguments depends on its
    version. It is called once with a stand-in for the compiled one. Where the further arguments are the same for every
    launch, the compiled one is called directly.
    """
    run = compiled.run  # makes the function, too
    direct = direct_of(compiled)
    fixed = (compiled.function, compiled.packed_metadata, None, None, None)
    handed: list[tuple[object, ...]] = []
    if not callable(getattr(run, "launch", None)):
        return Launch(run, fixed, direct)
    try:
        asked = copy.copy(run)
        asked.launch = lambda *all_of_it: handed.append(all_of_it)
        asked(1, 1, 1, 0, *fixed, *_MARKS)
        grid_and_stream, between, marks = handed[0][:4], handed[0][4:-2], handed[0][-2:]
        constant = all(value is None or value in (True, False) or value in fixed for value in between)
        if grid_and_stream == (1, 1, 1, 0) and marks == _MARKS and constant:
            return Launch(run.launch, between, direct)
    except Exception:  # another launcher: its own function does it
        pass
    return Launch(run, fixed, direct)


@lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL | None:
    """Return CUDA's driver, where it can tell the layout of a kernel's arguments (12.4 and later)."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        return driver if driver.cuFuncGetParamInfo and driver.cuLaunchKernelEx and driver.cuFuncGetAttribute else None
    except (OSError, AttributeError):
        return None


def direct_of(compiled: CompiledKernel) -> Direct | None:
    """Return a direct launch of a compiled kernel by the driver; None where that is not certain to be right.

    The driver tells the layout of the kernel's arguments; a kernel with anything unusual is left to Triton.
    """
    driver = _driver() if torch.version.cuda is not None else None
    about = getattr(compiled, "metadata", None)
    if driver is None or about is None:
        return None
    try:
        unusual = "launch_cooperative_grid", "global_scratch_size", "profile_scratch_size"
        if about.num_ctas != 1 or about.target.backend != "cuda" or any(getattr(about, name, 0) for name in unusual):
            return None
        function, count = ctypes.c_void_p(compiled.function), 0
        place, size = ctypes.c_size_t(), ctypes.c_size_t()
        while driver.cuFuncGetParamInfo(function, ctypes.c_size_t(count), ctypes.byref(place), ctypes.byref(size)) == 0:
            if (place.value, size.value) != (8 * count, 8):
                return None
            count += 1
        most, threads = ctypes.c_int(), 32 * about.num_warps
        if driver.cuFuncGetAttribute(ctypes.byref(most), _THREADS, function) or threads > most.value:
            return None
        launch = ctypes.cast(driver.cuLaunchKernelEx, ctypes.c_void_p).value or 0
        early = bool(getattr(about, "launch_pdl", False))
        return Direct(launch, compiled.function, threads, about.shared, early, count)
    except Exception:  # another Triton: its launcher does it
        return None


def can_be_early(device: torch.device) -> bool:
    """Return whether a kernel can be launched while the previous one still runs, and wait for it by itself.

    That is `launch_pdl` (programmatic dependent launch): 1.4 µs of a launch pass while the previous kernel runs.
    """
    if gdc_wait is None or device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)
