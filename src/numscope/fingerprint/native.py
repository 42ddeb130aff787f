"""The C functions: native.c takes the fingerprint of a content in memory, native_launch.c launches a kernel on a GPU.

They are compiled when they are first needed, where the machine has a compiler, tried out against the definition, and kept in
the user's cache folder. Without them contents are measured by numpy calls, in three times the time, and kernels are launched
by Triton, with the same results. `NUMSCOPE_NATIVE=0` forbids them.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from numscope.core.compiling import compiled, is_wanted, program, vector_flags
from numscope.fingerprint import definition
from numscope.fingerprint.kinds import KINDS, Kind
from numscope.fingerprint.rows import Places, Rows

# The kinds of native.c, in its order; bool is measured as uint8.
_CODES = ["float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "int8", "uint8"]
_EXPONENTS = {"float32": 0x7F800000, "bfloat16": 0x7F80, "float16": 0x7C00}  # the bits of the exponent
_DIMENSIONS = 8  # of a form, at most
_SHORT = 1 << 18  # bytes of a content below which Python's lock is kept: getting it back would take longer
_FLAGS = ["-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-strict-aliasing", "-fPIC", "-shared", "-lm"]
_SOURCES = ("native.c", "native_launch.c", "native_block.h")


# (form or packed launch, row, address >> 32, address) -> 0, or another number where it was not done
NativeCall = Callable[[bytes, int, int, int], int]


class Way(NamedTuple):
    """The way to measure contents of one form: a call of native.c."""

    measure: NativeCall
    form: bytes
    entry: int  # the address of the function
    lets_go: bool  # it releases Python's lock


class Native:
    """The compiled functions: one that measures, with and without Python's lock, and one that launches a kernel."""

    def __init__(self, path: Path) -> None:
        library = ctypes.PyDLL(str(path))
        self._short: NativeCall = library.numscope_measure
        free = ctypes.CDLL(str(path))  # releases Python's lock
        self._long: NativeCall = free.numscope_measure
        self.launch: NativeCall = free.numscope_launch  # may have to wait for the GPU
        self._entry = _address(free.numscope_measure)
        self.launch_entry = _address(free.numscope_launch)
        library.numscope_prepare(ctypes.c_void_p(_parallel()))

    def way(
        self, places: Places, kind: Kind, elements: int, shape: Sequence[int], strides: Sequence[int]
    ) -> Way | None:
        """Return the way to measure contents of one form into the rows of `places`; None where the function cannot.

        `shape` and `strides` (in bytes) are those of real elements.
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
    """Return the address of GOMP_parallel in the OpenMP that the job has loaded, or 0: it runs work in the job's threads."""
    try:
        with open("/proc/self/maps") as file:
            paths = {line.partition("/")[2].rstrip() for line in file if "/libgomp" in line or "/libiomp5" in line}
        # The framework brings its own, which comes first where there are several.
        for path in sorted(paths, key=lambda path: ("/torch/lib/" not in path, "/libgomp" in path)):
            return _address(ctypes.CDLL(f"/{path}").GOMP_parallel)
    except (OSError, AttributeError):
        pass
    return 0


def _address(function: NativeCall) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def _joined(shape: Sequence[int], strides: Sequence[int], size: int) -> tuple[list[int], list[int]]:
    """Return lengths and strides with as few dimensions as possible, one at least, that show the elements in order."""
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
    """Return the compiled functions, or None where there are none; the answer holds for the whole process."""
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
    """Measure a content of each kind, special values included, and raise where a result differs from the definition."""
    words = np.random.Generator(np.random.PCG64(0)).integers(0, 256, 70_001 * 8, np.uint8)
    for name in _CODES:
        raw = words[: 70_001 * KINDS[name].size].copy()
        if name in _EXPONENTS:  # no subnormal numbers: the definition reads zeros where the job has them flushed
            bits = raw.view(f"u{KINDS[name].size}")
            bits[bits & _EXPONENTS[name] == 0] = 0
        array: NDArray[np.generic] = raw.view(_dtype(name))
        if name == "float64":
            array = (words[:70_001].astype(np.float64) - 100) / 7
        places = Places()
        rows = Rows(1, places)
        rows.count = 1
        rows.reserve()
        way = native.way(places, KINDS[name], array.size, array.shape, array.strides)
        failed = way is None or way.measure(way.form, 0, array.ctypes.data >> 32, array.ctypes.data)
        measured, right = rows.hand_over(), definition.fingerprint(array)
        scale = float(right.l2[0]) + 1e-300
        same = all(
            getattr(measured, column)[0] == getattr(right, column)[0]
            for column in ("nan", "posinf", "neginf", "zero", "hash")
        )
        sizes = {column: float(abs(getattr(right, column)[0])) for column in ("min", "max", "l2")} | {"mean": scale}
        near = all(
            abs(getattr(measured, column)[0] - getattr(right, column)[0]) <= 1e-9 * size
            for column, size in sizes.items()
        )
        if failed or not (same and near) or np.abs(measured.sketch - right.sketch).max() > 1e-9 * scale:
            raise ArithmeticError(f"the compiled form measures {name} wrongly")


def _dtype(name: str) -> np.dtype[np.generic]:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)
