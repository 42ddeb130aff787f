"""A run says how each of its ranks ended, and how often numscope itself was at fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import numscope as ns

ROOT = Path(__file__).parents[2]
MODEL = """
import os, signal, sys, torch
import numscope as ns
model = torch.nn.Linear(4, 4)
"""
JOBS = {
    "with ns.capture('run', model): model(torch.ones(2, 4))": "closed",
    "with ns.capture('run', model): model(torch.ones(2, 5))": "RuntimeError",
    "with ns.capture('run', model): model(torch.ones(2, 4)); sys.exit()": "closed",
    "with ns.capture('run', model): model(torch.ones(2, 4)); sys.exit(3)": "SystemExit",
    "cap = ns.capture('run', model); cap.start(); model(torch.ones(2, 4)); cap.close()": "closed",
    "cap = ns.capture('run', model); cap.start(); model(torch.ones(2, 4)); cap.stop(); os._exit(0)": "closed",
    "cap = ns.capture('run', model); cap.start(); model(torch.ones(2, 4))": "closed",
    "cap = ns.capture('run', model); cap.start(); model(torch.ones(2, 4)); {}['a']": "KeyError",
    "cap = ns.capture('run', model); cap.start(); model(torch.ones(2, 4)); cap.step(); os._exit(0)": "",
    "cap = ns.capture('run', model); cap.start(); model(torch.ones(2, 4)); cap.stop(); cap.start(); "
    "model(torch.ones(2, 4)); cap.step(); cap._recorder.writer.flush(); os.kill(os.getpid(), signal.SIGKILL)": "",
}


def run(code: str, folder: Path, *command: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    (folder / "job.py").write_text(textwrap.dedent(code))
    subprocess.run([sys.executable, *command, "job.py"], cwd=folder, env=environment, capture_output=True)


@pytest.mark.parametrize("job", JOBS)
def test_a_run_says_how_its_job_ended(job: str, tmp_path: Path) -> None:
    run(MODEL + job, tmp_path)
    assert ns.open_run(tmp_path / "run").ends() == {0: JOBS[job]}


SPAWNED = """
import sys, torch
import torch.multiprocessing as mp

def work(rank, start):
    import os
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    torch.ones(2).exp()
    if rank:
        raise ValueError("no")

if __name__ == "__main__":
    try:
        mp.start_processes(work, (0,), nprocs=2, start_method="METHOD")
    except Exception:
        pass
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_each_rank_of_a_job_says_how_it_ended(method: str, tmp_path: Path) -> None:
    run(SPAWNED.replace("METHOD", method), tmp_path, "-m", "numscope", "run", "--out", "run", "--")
    ends = ns.open_run(tmp_path / "run").ends()
    assert ends.pop(1) == "ValueError"
    assert set(ends.values()) <= {"closed", ""}  # where torch has ended the other process


@pytest.mark.parametrize(
    ("line", "end"), [("", "closed"), ("torch.ones(2) @ torch.ones(3)", "RuntimeError"), ("exit(2)", "SystemExit")]
)
def test_a_script_that_crashed_is_told(line: str, end: str, tmp_path: Path) -> None:
    run(f"import torch\ntorch.ones(2).exp()\n{line}", tmp_path, "-m", "numscope", "run", "--out", "run", "--")
    assert ns.open_run(tmp_path / "run").ends() == {0: end}


def test_an_exception_that_was_handled_when_the_capture_began_has_not_ended_it(tmp_path: Path) -> None:
    try:
        raise ValueError("not this one")
    except ValueError:
        with ns.capture(tmp_path / "run"):
            torch.ones(2).exp()
    assert ns.open_run(tmp_path / "run").ends() == {0: "closed"}


def test_runs_that_do_not_say_how_they_ended_have_no_end(tmp_path: Path) -> None:
    with ns.capture(tmp_path / "run"):
        torch.ones(2).exp()
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest.pop("ends") is True
    del manifest["checksum"]
    (tmp_path / "run/manifest.json").write_text(json.dumps(manifest))
    assert ns.open_run(tmp_path / "run").ends() == {}


def test_faults_of_our_own_are_counted_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(4, 4)
    with ns.capture(tmp_path / "run", model) as cap:
        model(torch.ones(2, 4))
        torch.ones(3).to_sparse().sum()  # not measured, and no fault
        cap.step()
        with pytest.warns(UserWarning, match="could not record a call"):
            watch = cap._frontend.watch  # type: ignore[attr-defined]
            for _ in range(2):
                watch.fault("a test", ValueError("of ours"))
        cap.step()
    read = ns.open_run(tmp_path / "run")
    assert read.faults() == 2
    assert read.skipped()["a test: ValueError: of ours"] == 2
    assert sum(read.skipped().values()) > 2
