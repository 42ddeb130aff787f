"""The C functions: native.c takes the fingerprint of a content in memory, native_launch.c launches a kernel on a GPU.

They are compiled once, where the machine has a compiler, when they are first needed, tried out against the definition, and
kept in the user's cache folder. Where any of that can't be had, contents are measured by numpy calls, in three times the
time, and kernels are launched by Triton: the same results.
`NUMSCOPE_NATIVE=0` asks for that.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numscope.core.compiling import compiled, is_wanted, program, vector_flags
from numscope.fingerprint import definition
from numscope.fingerprint.kinds import KINDS, Kind
from numscope.fingerprint.rows import Places, Rows

# The kinds of native.c, in its order; bool is measured as uint8.
_CODES = ["float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "int8", "uint8"]
_EXPONENTS = {"float32": 0x7F800000, "bfloat16": 0x7F80, "float16": 0x7C00}  # the bits that have them
_DIMENSIONS = 8  # of a form
_SHORT = 1 << 18  # bytes of a content for which Python's lock is kept: it would take longer to get it back
_FLAGS = ["-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-strict-aliasing", "-fPIC", "-shared", "-lm"]
_SOURCES = ("native.c", "native_launch.c", "native_block.h")


class Way(NamedTuple):
    """How contents of one form are measured."""

    measure: Any  # the function
    form: bytes
    entry: int  # where the function is
    lets_go: bool  # of Python's lock


class Native:
    """The compiled function, in two ways to call it: (form, row, address >> 32, address) -> 0, or 1 for `not measured`."""

    def __init__(self, path: Path) -> None:
        library = ctypes.PyDLL(str(path))
        self._short = library.numscope_measure
        free = ctypes.CDLL(str(path))  # lets go of Python's lock
        self._long = free.numscope_measure
        # of a kernel: (packed, row, address >> 32, address) -> 0 for `launched`; it may have to wait for the GPU
        self.launch: Any = free.numscope_launch
        self._entry = _address(free.numscope_measure)
        self.launch_entry = _address(free.numscope_launch)
        library.numscope_prepare(ctypes.c_void_p(_parallel()))

    def way(
        self, places: Places, kind: Kind, elements: int, shape: Sequence[int], strides: Sequence[int]
    ) -> Way | None:
        """Return how contents of one form are measured into the rows there.

        `shape` and `strides` (in bytes) are those of real elements; None where the function can't.
        """
        name = "uint8" if kind.name == "bool" else kind.name
        if name not in _CODES or not elements:
            return None
        lengths, steps = _joined(shape, strides, kind.size)
        if len(lengths) > _DIMENSIONS:
            return None
        room = [0] * (_DIMENSIONS - len(lengths))
        numbers = places.address, _CODES.index(name), kind.size, elements, len(lengths), *lengths, *room, *steps, *room
        form = struct.pack(f"={len(numbers)}q", *numbers)
        lets_go = math.prod(lengths) * kind.size > _SHORT
        return Way(self._long if lets_go else self._short, form, self._entry, lets_go)


def _parallel() -> int:
    """Return where the function is that has the job's own threads do some work: that of the OpenMP that is loaded, or 0."""
    try:
        with open("/proc/self/maps") as file:
            paths = {line.partition("/")[2].rstrip() for line in file if "/libgomp" in line or "/libiomp5" in line}
        # Where there are several, that of the framework, which has it among its own libraries.
        for path in sorted(paths, key=lambda path: ("/torch/lib/" not in path, "/libgomp" in path)):
            return _address(ctypes.CDLL(f"/{path}").GOMP_parallel)
    except (OSError, AttributeError):
        pass
    return 0


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _joined(shape: Sequence[int], strides: Sequence[int], size: int) -> tuple[list[int], list[int]]:
    """Return lengths and strides with as few dimensions as show the same elements in the same order, but one at least."""
    lengths, steps = [1], [size]
    for length, step in zip(reversed(shape), reversed(strides)):
        if length == 1:
            continue
        if lengths[0] == 1:
            lengths[0], steps[0] = length, step
        elif step == lengths[0] * steps[0]:
            lengths[0] *= length
        else:
            lengths.insert(0, length)
            steps.insert(0, step)
    return lengths, steps


@lru_cache(maxsize=1)
def load() -> Native | None:
    """Return the compiled functions, or None where they can't be had; the answer is the same for the whole process."""
    if not is_wanted():
        return None
    try:
        return Native(_library())
    except Exception:  # no compiler, no place to write to, a library of another system: slower, not wrong
        return None


def _library() -> Path:
    sources = [Path(__file__).with_name(name) for name in _SOURCES]
    compiler = program("CC", "cc", "gcc", "clang")
    return compiled(
        "fingerprint", sources, compiler, [[*_FLAGS, *vector_flags()]], (), lambda path: _try_out(Native(path))
    )


def _try_out(native: Native) -> None:
    """Measure a content of each kind, with all that is special in it, and raise where one is not the definition's."""
    words = np.random.Generator(np.random.PCG64(0)).integers(0, 256, 70_001 * 8, np.uint8)
    for name in _CODES:
        array: Any = words[: 70_001 * KINDS[name].size].copy()
        if name in _EXPONENTS:  # no subnormal numbers: to the definition they are zeros where the job has them flushed
            bits = array.view(f"u{KINDS[name].size}")
            bits[bits & _EXPONENTS[name] == 0] = 0
        array = array.view(_dtype(name))
        if name == "float64":
            array = (words[:70_001].astype(np.float64) - 100) / 7
        places = Places()
        rows = Rows(1, places)
        rows.count = 1
        rows.reserve()
        way = native.way(places, KINDS[name], array.size, array.shape, array.strides)
        failed = way is None or way[0](way[1], 0, array.ctypes.data >> 32, array.ctypes.data)
        found, right = rows.hand_over(), definition.fingerprint(array)
        scale = float(right.l2[0]) + 1e-300
        same = all(
            getattr(found, one)[0] == getattr(right, one)[0] for one in ("nan", "posinf", "neginf", "zero", "hash")
        )
        near = [(one, float(abs(getattr(right, one)[0]))) for one in ("min", "max", "l2")] + [("mean", scale)]
        same = same and all(abs(getattr(found, one)[0] - getattr(right, one)[0]) <= 1e-9 * size for one, size in near)
        if failed or not same or np.abs(found.sketch - right.sketch).max() > 1e-9 * scale:
            raise ArithmeticError(f"the compiled form measures {name} wrongly")


def _dtype(name: str) -> Any:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)
