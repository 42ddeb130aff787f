"""The kernels that count on a GPU, as far as they can be seen without one; programs of their own, as the fingerprint's."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
BESIDE = Path(os.environ.get("TRITON_PACKAGES", ROOT / ".venv-triton"))


@pytest.mark.parametrize(
    ("program", "told"), [("flags_interpreted", "140 right\n"), ("flags_compiled", "16 compile\n")]
)
def test_the_kernels(program: str, told: str) -> None:
    """They count as torch does, and only where a look before showed something; they compile, and load 16 bytes a time."""
    if not BESIDE.is_dir() and importlib.util.find_spec("triton") is None:
        pytest.skip("no Triton: `make test` installs it into .venv-triton")
    path = os.pathsep.join([str(ROOT / "src"), str(BESIDE), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "ignore", "-m", f"tests.unit.capture.torch.{program}"]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, told), done.stderr
