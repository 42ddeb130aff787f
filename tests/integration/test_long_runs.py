"""Long jobs: what capture holds does not grow with the steps, and nothing of it stays when it is off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")

_JOB = Path(__file__).with_name("long_job.py")
_LONG = bool(os.environ.get("LONG"))  # `make long`


def job(how: str, count: int) -> list[dict[str, float]]:
    command = [sys.executable, str(_JOB), how, str(count)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=3000)
    assert answer.returncode == 0, answer.stderr
    seen: list[dict[str, float]] = json.loads(answer.stdout)
    return seen


def test_memory_and_files_stay_as_they_are_over_many_steps() -> None:
    early, late = job("steps", 20_000 if _LONG else 600)
    assert late["memory"] <= 1.05 * early["memory"]
    assert late["files"] <= early["files"] + 5  # those of the open segment, each from its first row on
    assert late["threads"] <= early["threads"]


@pytest.mark.parametrize("how", ["one", "many"])
def test_capture_turned_on_and_off_leaves_nothing(how: str) -> None:
    early, late = job(how, 1000 if _LONG else 60)
    assert late["threads"] == early["threads"] == 0
    assert late["files"] <= early["files"]
    assert late["memory"] <= 1.05 * early["memory"]
