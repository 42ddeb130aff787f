"""Triton's form, as far as it can be seen without a GPU; bench/gpu_fingerprint.py does the same on one.

Each test is a program of its own: Triton decides when it is imported whether it compiles or interprets, and torch behaves
differently where Triton can be imported. `make test` puts Triton beside the environment, into .venv-triton.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BESIDE = Path(os.environ.get("TRITON_PACKAGES", ROOT / ".venv-triton"))


def run(program: str) -> str:
    if not BESIDE.is_dir() and importlib.util.find_spec("triton") is None:
        pytest.skip("no Triton: `make test` installs it into .venv-triton")
    path = os.pathsep.join([str(ROOT / "src"), str(BESIDE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", f"tests.unit.fingerprint.{program}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_interpreted_kernels_agree_with_the_definition() -> None:
    assert run("interpreted").endswith("agree\n")


def test_the_kernels_compile_for_gpus_and_load_sixteen_bytes_at_a_time() -> None:
    assert run("compiled").endswith("compile\n")
