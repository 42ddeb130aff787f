"""Loads the C function that measures two arrays exactly: native.c.

It is compiled when it is first needed, tested against numpy, and kept in the user's cache folder. Without a compiler, or
with `NUMSCOPE_NATIVE=0`, numpy measures instead, which takes several times as long.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np

from numscope.core.compiling import compiled, is_wanted, program, vector_flags
from numscope.core.dtypes import AnyArray

_KINDS = ["float32", "bfloat16", "float16"]  # in the order of native.c
LEAST = 4096  # elements: numpy measures smaller arrays
_FLAGS = ["-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing", "-fPIC", "-shared"]


_Function = Callable[..., int]  # numscope_measures of native.c: 0 where it has measured


class ChunkMeasures(ctypes.Structure):
    """The measures of a chunk, as native.c lays them out."""

    _fields_ = [
        *((name, ctypes.c_double) for name in ("bb", "dd", "db", "b", "d", "aa", "ab", "a")),
        *((name, ctypes.c_double) for name in ("relative", "most", "most_relative")),
        *((name, ctypes.c_int64) for name in ("first", "worst", "zeros", "near1", "near5", "mismatches", "ulps")),
    ]


class Pair:
    """Two arrays of one dtype, measured a chunk at a time; `errors` receives the absolute errors of a chunk."""

    def __init__(
        self, function: _Function, a: AnyArray, b: AnyArray, tolerance: tuple[float, float], errors: AnyArray
    ) -> None:
        self._function, self._kind, self._tolerance = function, _KINDS.index(a.dtype.name), tolerance
        self._size = a.dtype.itemsize
        self._arrays, self._a, self._b, self._errors = (a, b, errors), a.ctypes.data, b.ctypes.data, errors.ctypes.data

    def measure(self, begin: int, count: int, ulps: int) -> ChunkMeasures | None:
        """Measure `count` elements from `begin` on; None where numpy has to. `ulps` is the largest distance so far."""
        measures = ChunkMeasures(first=-1, worst=-1, ulps=ulps)
        at = begin * self._size
        arguments = self._kind, self._a + at, self._b + at, count, *self._tolerance, self._errors
        return None if self._function(*arguments, ctypes.byref(measures)) else measures


def pair(a: AnyArray, b: AnyArray, tolerance: tuple[float, float], errors: AnyArray) -> Pair | None:
    """Return the pair of two flat arrays; None for dtypes and sizes that numpy measures."""
    is_fit = a.dtype == b.dtype and a.dtype.name in _KINDS and a.size >= LEAST
    if not is_fit or not (a.flags.aligned and b.flags.aligned):
        return None
    function = load()
    return None if function is None else Pair(function, a, b, tolerance, errors)


@lru_cache(maxsize=1)
def load() -> _Function | None:
    """Return the compiled function, or None where there is none; the process asks once."""
    if not is_wanted():
        return None
    try:
        source = Path(__file__).with_suffix(".c")
        flags = [[*_FLAGS, *vector_flags()]]
        path = compiled("measures", [source], program("CC", "cc", "gcc", "clang"), flags, (), _try_out)
        return _function(path)
    except Exception:  # no compiler, no writable cache, a library of another system: slower, not wrong
        return None


def _function(path: Path) -> _Function:
    function = ctypes.CDLL(str(path)).numscope_measures  # releases Python's lock while it runs
    double, pointer = ctypes.c_double, ctypes.c_void_p
    function.argtypes = [ctypes.c_int, pointer, pointer, ctypes.c_int64, double, double, pointer, pointer]
    return function


def _try_out(path: Path) -> None:
    """Measure two arrays of each kind; raise where the result is not numpy's in float64."""
    import ml_dtypes

    random = np.random.Generator(np.random.PCG64(0))
    base = random.standard_normal(3001, np.float32)
    base[::7] = 0
    other = base * (1 + 0.01 * random.standard_normal(3001, np.float32))
    for name in _KINDS:
        dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
        a, b, errors = other.astype(dtype), base.astype(dtype), np.empty(3001, np.float32)
        measures = Pair(_function(path), a, b, (1e-3, 1e-5), errors).measure(0, 3001, 0)
        x, y = a.astype(np.float64), b.astype(np.float64)
        d = np.abs(x - y)
        there = y != 0
        right = [x @ x, x @ y, y @ y, d @ d, x.sum(), y.sum(), (d[there] / np.abs(y[there])).sum(), d.max()]
        if measures is None:
            raise ArithmeticError(f"the compiled form does not measure {name}")
        columns = ("aa", "ab", "bb", "dd", "a", "b", "relative", "most")
        same = np.allclose([getattr(measures, column) for column in columns], right, rtol=1e-5)
        if not same or np.abs(errors - d).max() > 1e-6 * d.max() or measures.zeros != (~there).sum():
            raise ArithmeticError(f"the compiled form measures {name} wrongly")
