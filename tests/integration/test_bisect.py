"""Bisect finds, in two passes and with little disk, what fingerprints alone can't explain; and goes on after a stop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import numscope as ns
from numscope.core.errors import SettingsError
from numscope.diagnose.bisect.axes import sides
from numscope.diagnose.bisect.bisection import job

SCRIPT = """
import os, sys
import torch, torch.nn.functional as F
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
width = int(os.environ.get("WIDTH", "32"))
wrong = "--wrong" in sys.argv or os.environ.get("FLAG") == "1"
tanh, dtype = "--tanh" in sys.argv, torch.bfloat16 if "--low" in sys.argv else torch.float32
class Block(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.index = index
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        h = self.up(self.norm(x))
        if wrong and self.index == 9:
            h = h * torch.sigmoid(1.702 * h)
        elif tanh and self.index == 9:
            h = 0.5 * h * (1.0 + torch.tanh(0.7978845608 * (h + 0.044715 * h * h * h)))
        else:
            h = F.gelu(h)
        return x + self.down(h)
model = nn.Sequential(*(Block(i) for i in range(12))).to(dtype)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if "--chance" in sys.argv:
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
x = torch.randn(64, width).to(dtype)
for step in range(3):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def bisect(*words: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "numscope", "bisect", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True)


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_the_second_pass_finds_the_repair_with_a_twentieth_of_the_disk(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIDTH", "256")
    out = tmp_path / "out"
    words = ("--target", f"python {script} --wrong", "--reference", script, "--out", out, "--no-check")
    done = bisect(*words)
    assert done.returncode == 1, done.stderr
    report = json.loads((out / "report.json").read_text())
    assert report["origin"]["module"] == "9"
    assert report["origin"]["step"] == 0
    assert report["origin"]["mechanism"] == "semantic"
    assert report["origin"]["source"]["line"] in (18, 22)
    assert (out / "test_origin.py").exists()
    # Fingerprints alone can't be replayed: the second pass was needed.
    coarse = ns.diagnose(out / "target", out / "reference")
    assert coarse.origin is not None
    assert coarse.origin.mechanism == "semantic"  # another operator is called: that needs no replay
    assert coarse.origin.repair is None
    full = [sys.executable, "-m", "numscope", "run", "--keep", "tensors", "--out", str(tmp_path / "full"), "--"]
    subprocess.run([*full, str(script), "--wrong"], check=True, capture_output=True)
    assert 0 < size(out) <= 0.05 * 2 * size(tmp_path / "full")  # all of both sides, both passes and the report
    again = bisect(*words)
    assert again.returncode == 1
    assert again.stderr.count("done already") == 4


def test_lockstep_decides_where_rounding_is_too_coarse(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("--reference", script, "--out", out, "--no-check", "--json", tmp_path / "report.json")
    done = bisect("--target", f"{script} --low --tanh", *words)
    assert done.returncode == 1, done.stderr
    assert "now lockstep, call by call" in done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["origin"]["module"], report["origin"]["mechanism"]) == ("9", "semantic")
    assert "only the target has this call; fed the reference's inputs" in report["origin"]["reason"]
    assert report["origin"]["error"]["relative"] < 1e-3
    healthy = bisect("--target", f"{script} --low", *words)
    assert healthy.returncode == 0, healthy.stderr
    assert "are those of the reference's program" in healthy.stderr


def test_an_axis_derives_the_reference(script: Path, tmp_path: Path) -> None:
    done = bisect("--target", script, "--axis", "env FLAG=1,0", "--out", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    assert "the target repeats itself to the bit" in done.stderr
    assert "mechanism  semantic" in done.stdout


def test_a_command_that_does_not_repeat_itself_is_told_with_the_first_call(script: Path, tmp_path: Path) -> None:
    done = bisect("--target", f"{script} --chance", "--reference", script, "--out", tmp_path / "out")
    assert "WARNING: the target does not repeat itself, first at Torch.randn" in done.stderr
    assert "the reference repeats itself to the bit" in done.stderr


def test_a_command_that_fails_is_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("raise SystemExit(7)")
    done = bisect("--target", bad, "--reference", bad, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "ended with status 7" in done.stderr
    assert bisect("--target", bad, "--out", tmp_path / "out").returncode == 2


def test_axes_and_commands_are_checked() -> None:
    assert job("target", "python3 train.py --x 'a b'").command == ("train.py", "--x", "a b")
    assert sides("threads")[1].environment["OMP_NUM_THREADS"] == "1"
    assert sides("env A=1,2")[0].environment == {"A": "1"}
    for wrong in ("colour", "env A"):
        with pytest.raises(SettingsError):
            sides(wrong)
