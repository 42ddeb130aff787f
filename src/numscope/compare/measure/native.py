"""The C function that takes the exact measures of two contents: native.c.

Compiled once, where the machine has a compiler, when it is first needed, tried out, and kept in the user's cache folder.
Where any of that can't be had, numpy measures, in several times the time. `NUMSCOPE_NATIVE=0` asks for that.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numscope.core.compiling import compiled, is_wanted, program, vector_flags

_KINDS = ["float32", "bfloat16", "float16"]  # in the order of native.c
LEAST = 4096  # elements for which it is loaded
_FLAGS = ["-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing", "-fPIC", "-shared"]


class Found(ctypes.Structure):
    """What native.c has found in a chunk."""

    _fields_ = [
        *((name, ctypes.c_double) for name in ("bb", "dd", "db", "b", "d", "aa", "ab", "a")),
        *((name, ctypes.c_double) for name in ("relative", "most", "most_relative")),
        *((name, ctypes.c_int64) for name in ("first", "worst", "zeros", "near1", "near5", "mismatches", "ulps")),
    ]


class Pair:
    """Two contents of one dtype, measured a chunk at a time; `errors` takes the absolute errors of a chunk."""

    def __init__(
        self, function: Any, a: NDArray[Any], b: NDArray[Any], tolerance: tuple[float, float], errors: NDArray[Any]
    ) -> None:
        self._function, self._kind, self._tolerance = function, _KINDS.index(a.dtype.name), tolerance
        self._size = a.dtype.itemsize
        self._arrays, self._a, self._b, self._errors = (a, b, errors), a.ctypes.data, b.ctypes.data, errors.ctypes.data

    def measure(self, begin: int, count: int, ulps: int) -> Found | None:
        """Measure the elements from `begin` on, or return None where numpy has to; `ulps`: how far off some are already."""
        found = Found(first=-1, worst=-1, ulps=ulps)
        at = begin * self._size
        words = self._kind, self._a + at, self._b + at, count, *self._tolerance, self._errors
        return None if self._function(*words, ctypes.byref(found)) else found


def pair(a: NDArray[Any], b: NDArray[Any], tolerance: tuple[float, float], errors: NDArray[Any]) -> Pair | None:
    """Return the pair of two flat arrays, or None where the function can't measure it or would gain nothing."""
    known = a.dtype == b.dtype and a.dtype.name in _KINDS and a.size >= LEAST
    if not known or not (a.flags.aligned and b.flags.aligned):
        return None
    function = load()
    return None if function is None else Pair(function, a, b, tolerance, errors)


@lru_cache(maxsize=1)
def load() -> Any:
    """Return the compiled function, or None where it can't be had; the answer is the same for the whole process."""
    if not is_wanted():
        return None
    try:
        source = Path(__file__).with_suffix(".c")
        flags = [[*_FLAGS, *vector_flags()]]
        path = compiled("measures", [source], program("CC", "cc", "gcc", "clang"), flags, (), _try_out)
        return _function(path)
    except Exception:  # no compiler, no place to write to, a library of another system: slower, not wrong
        return None


def _function(path: Path) -> Any:
    function = ctypes.CDLL(str(path)).numscope_measures  # lets go of Python's lock
    number, place = ctypes.c_double, ctypes.c_void_p
    function.argtypes = [ctypes.c_int, place, place, ctypes.c_int64, number, number, place, place]
    return function


def _try_out(path: Path) -> None:
    """Measure two contents of each kind, and raise where that is not what numpy has in float64."""
    import ml_dtypes

    random = np.random.Generator(np.random.PCG64(0))
    base = random.standard_normal(3001, np.float32)
    base[::7] = 0
    other = base * (1 + 0.01 * random.standard_normal(3001, np.float32))
    for name in _KINDS:
        dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
        a, b, errors = other.astype(dtype), base.astype(dtype), np.empty(3001, np.float32)
        found = Pair(_function(path), a, b, (1e-3, 1e-5), errors).measure(0, 3001, 0)
        x, y = a.astype(np.float64), b.astype(np.float64)
        d = np.abs(x - y)
        there = y != 0
        right = [x @ x, x @ y, y @ y, d @ d, x.sum(), y.sum(), (d[there] / np.abs(y[there])).sum(), d.max()]
        same = found is not None and np.allclose(
            [found.aa, found.ab, found.bb, found.dd, found.a, found.b, found.relative, found.most], right, rtol=1e-5
        )
        if not same or np.abs(errors - d).max() > 1e-6 * d.max() or found.zeros != (~there).sum():  # type: ignore[union-attr]
            raise ArithmeticError(f"the compiled form measures {name} wrongly")
