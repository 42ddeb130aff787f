"""Runs tests with compiled functions that AddressSanitizer and UndefinedBehaviorSanitizer watch.

python -m tests.sanitize [pytest arguments]

The sanitizers' libraries come first in the process, and Python takes each object's memory from malloc, so that a byte too
many is seen. The sources are compiled with warnings as errors.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

_TESTS = (
    "tests/unit/fingerprint/test_native.py",
    "tests/unit/fingerprint/test_statistics.py",
    "tests/unit/compare/test_exact.py",
    "tests/unit/capture/test_long_steps.py",
    "tests/unit/capture/test_passing_texts.py",
    "tests/integration/test_api_usual.py",
    "tests/integration/test_aten_ordinary.py",
    "tests/integration/test_compiled_twins.py",
    "tests/integration/test_compile.py",
)
_WATCHED = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-g1",
    "-Wall",
    "-Wextra",
    "-Werror",
)
_COMPILE = """
from numscope.core import compiling
compiling._SECONDS = 900  # the sanitizers' code is much more
import torch
from numscope.capture.torch import native
from numscope.compare.measure import native as measure
from numscope.fingerprint import native as fingerprint
assert native.load() is not None, "the compiled functions of capture are not there"
assert fingerprint.load() is not None, "those of fingerprints are not there"
assert measure.load() is not None, "those of exact measures are not there"
"""


def _library(name: str) -> str:
    """Return the path of a library of the compiler's."""
    return subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()


def main() -> int:
    with tempfile.TemporaryDirectory() as cache:
        flags = " ".join(_WATCHED)
        environment = {
            **os.environ,
            "XDG_CACHE_HOME": cache,
            "CC": f"gcc {flags}",
            "CXX": f"g++ {flags}",
            "LD_PRELOAD": " ".join(map(_library, ("libasan.so", "libubsan.so", "libstdc++.so"))),
            # Python and torch keep what they have until the process ends, and both define some names of OpenMP's.
            "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": "src",
        }
        root = Path(__file__).parent.parent
        subprocess.run([sys.executable, "-c", _COMPILE], env=environment, cwd=root, check=True)
        tests = sys.argv[1:] or list(_TESTS)
        # Not captured: a report ends the process before pytest could show it.
        pytest = [sys.executable, "-m", "pytest", "-q", "-s", "--timeout=1800", *tests]
        return subprocess.run(pytest, env=environment, cwd=root).returncode


if __name__ == "__main__":
    sys.exit(main())
