"""Where torch knows an `npu` device, it is used as any device is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("npu_device.py")
HAS = hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend")


@pytest.mark.skipif(not HAS, reason=f"torch {torch.__version__} cannot register a device from Python")
def test_the_documents_examples_run_on_a_registered_npu(tmp_path: Path) -> None:
    # In a process of its own: a registered device cannot be taken away again.
    done = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("npu works\n")
