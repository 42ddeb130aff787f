"""Memory on the host: 256 MB are enough for capture, beside the tensors that are kept, whatever the job makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

_JOB = Path(__file__).with_name("memory_job.py")
_MOST = 256  # MB
_FEW = [
    "3000 262144 api stats plain",  # of 1 MB, none of which is there when the next but one is made
    "20000 16384 mix stats plain",
    "100000 4 api stats numbers",
]
_MANY = [  # `make long`
    "6000 262144 aten stats plain",
    "1000000 4 api stats plain",
    "1000000 4 api stats numbers",
    "1000000 4 aten stats plain",
    "200000 4 mix stats backward",
    "1000 262144 api tensors plain",
]


@pytest.mark.parametrize("job", [*_FEW, *(_MANY if os.environ.get("LONG") else [])])
def test_capture_takes_no_more_memory_than_it_may(job: str) -> None:
    answer = subprocess.run([sys.executable, str(_JOB), *job.split()], capture_output=True, text=True, timeout=1500)
    assert answer.returncode == 0, answer.stderr
    assert int(answer.stdout) < _MOST
