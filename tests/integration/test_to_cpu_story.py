"""Seed 000's story, end to end: trace, compare, and to_cpu proves which function between two modules is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import numscope as ns

# A third-party function without a torch call that could be seen: its "no-spill build" is wrong in float32.
WARPERS = """
import numpy as np
import torch

build = {"spill": True}

def temperature(scores):
    return torch.from_numpy(np.ascontiguousarray(scores.numpy() / scores.numpy().dtype.type(0.7)))

def logits_warper(scores):
    values = scores.numpy().copy()
    order = np.sort(values, axis=-1)
    keep = 5 if build["spill"] or values.dtype == np.float64 else 6
    values[values < order[:, -keep][:, None]] = -1e9
    return torch.from_numpy(values)
"""

SCRIPT = """
import sys
import torch
import warpers
torch.manual_seed(0)
torch.set_num_threads(1)
warpers.build["spill"] = "--no-spill" not in sys.argv
body = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 12))
with torch.no_grad():
    for _ in range(2):
        scores = body(torch.randn(4, 8))
        scores = warpers.temperature(scores)
        scores = warpers.logits_warper(scores)
        probabilities = torch.nn.functional.softmax(scores, dim=-1)
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "warpers.py").write_text(WARPERS)
    (tmp_path / "generate.py").write_text(SCRIPT)
    return tmp_path / "generate.py"


def capture(job: Path, out: str, *options: str, arguments: tuple[str, ...] = ()) -> Path:
    path = job.parent / out
    line = [sys.executable, "-m", "numscope", "run", "--keep", "tensors", *options, "--out", str(path), "--", str(job)]
    done = subprocess.run([*line, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


def test_trace_compare_and_to_cpu_prove_the_function(job: Path) -> None:
    wrong = ("--no-spill",)
    reference = capture(job, "reference")
    target = capture(job, "target", arguments=wrong)
    found = ns.compare(target, reference)
    assert found.verdict == "diverged"
    assert found.origin is not None
    # What differs first is what the softmax was given: it came from a function that torch does not see.
    assert "softmax" in found.origin.call or "from_numpy" in found.origin.call, found.origin
    report = ns.diagnose(found)
    assert report.origin is not None
    assert report.origin.mechanism == "input"
    # Rerouting the first of the two suspects changes nothing; rerouting the second one heals it.
    options = ("--dtype", "float64")
    innocent = capture(job, "innocent", "--to-cpu", "warpers.temperature", *options, arguments=wrong)
    assert ns.compare(innocent, reference).verdict == "diverged"
    healed = capture(job, "healed", "--to-cpu", "warpers.logits_warper", *options, arguments=wrong)
    assert ns.compare(healed, reference).verdict in ("identical", "equivalent")


def test_a_name_that_is_never_called_is_told(job: Path) -> None:
    line = [sys.executable, "-m", "numscope", "run", "--to-cpu", "blocks.*.attn", "--out", str(job.parent / "run")]
    done = subprocess.run([*line, "--", str(job)], capture_output=True, text=True)
    assert done.returncode == 0
    assert "nothing of that name was called" in done.stderr


def test_a_function_that_torch_does_not_have_is_one_line(job: Path) -> None:
    line = [sys.executable, "-m", "numscope", "run", "--to-cpu", "torch.softmx", "--out", str(job.parent / "run")]
    done = subprocess.run([*line, "--", str(job)], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "numscope: to_cpu('torch.softmx'): torch has no function of that name: did you mean torch.softmax?"
    ]


def test_confirm_reroutes_the_suspect_and_says_what_came_of_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "torch.manual_seed(0)\n"
        "x = torch.randn(4, 8)\n"
        "y = torch.nn.functional.gelu(x, approximate='tanh' if '--wrong' in sys.argv else 'none')\n"
        "z = y.sum()\n"
    )
    runs = []
    for name, arguments in (("target", ["--wrong"]), ("reference", [])):
        runs.append(str(tmp_path / name))
        line = [sys.executable, "-m", "numscope", "run", "--keep", "tensors", "--out", runs[-1], "--", str(script)]
        subprocess.run([*line, *arguments], check=True, capture_output=True)
    confirm = ["--confirm", f"{script} --wrong", "--dtype", "float64"]
    done = subprocess.run(
        [sys.executable, "-m", "numscope", "diagnose", *runs, *confirm], capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert "still differ at Functional.gelu.0.forward: it is not the device" in " ".join(done.stdout.split())
