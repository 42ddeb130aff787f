"""Two processes at the same work: one path, one run that is still written, one cache; and a file system without locks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import numscope as ns

ROOT = Path(__file__).parents[2]
JOB = """
import sys, time, pathlib, torch, numscope as ns
path, steps, pause, begin = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
pathlib.Path(f"{begin}.{sys.argv[5]}").touch()
while not pathlib.Path(begin).exists():
    time.sleep(0.001)
with ns.capture(path, model, keep="tensors") as cap:
    for step in range(steps):
        model(torch.full((2, 8), 1.0 + step)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        cap.step()
        time.sleep(pause)
print("trained")
"""
# What NFS without its lock daemon answers, and what some network file systems do.
NO_LOCKS = """
import errno, fcntl, os
def refused(*_):
    raise OSError(errno.{code}, os.strerror(errno.{code}))
fcntl.flock = fcntl.lockf = refused
def no_link(*_, **__):
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
os.link = no_link
"""


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (more.pop("first", ""), str(ROOT / "src")))),
        **more,
    }


def start(folder: Path, name: str, path: Path, steps: int = 3, pause: float = 0.0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", JOB, str(path), str(steps), str(pause), str(folder / "begin"), name]
    return subprocess.Popen(
        command, cwd=folder, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def begin(folder: Path, *names: str) -> None:
    deadline = time.monotonic() + 60
    while not all((folder / f"begin.{name}").exists() for name in names):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (folder / "begin").touch()


def whole(path: Path, steps: int) -> None:
    run = ns.open_run(path)
    assert (run.steps, run.incomplete, run.faults(), run.ends()) == (list(range(steps)), [], 0, {0: "closed"})
    for row in run.step_tables(steps - 1, 0).tensors.to_pylist():
        run.array(0, row["shard"], row["key"], row["dtype"], tuple(row["shape"]))


def numscope(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "numscope", *map(str, words)]
    return subprocess.run(command, env=environment(**more), capture_output=True, text=True)


def test_two_captures_into_one_path_leave_one_whole_run_and_one_line(tmp_path: Path) -> None:
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        jobs = [start(folder, name, folder / "run") for name in "ab"]
        begin(folder, "a", "b")
        told = [job.communicate(timeout=120) for job in jobs]
        assert [(job.returncode, out) for job, (out, _) in zip(jobs, told)] == [(0, "trained\n")] * 2, told
        warned = [err for _, err in told if err]
        assert len(warned) == 1, told
        assert "numscope stopped recording into" in warned[0]
        assert "choose another directory" in warned[0]
        assert len(warned[0].strip().splitlines()) <= 2, warned  # and the line of the job
        whole(folder / "run", 3)


def test_a_run_that_is_being_written_is_incomplete_and_never_another(tmp_path: Path) -> None:
    finished = start(tmp_path, "a", tmp_path / "finished", steps=40)
    begin(tmp_path, "a")
    assert finished.communicate(timeout=120) == ("trained\n", "")
    job = start(tmp_path, "b", tmp_path / "live", steps=40, pause=0.1)
    verdicts = []
    try:
        while job.poll() is None:
            if (tmp_path / "live" / "manifest.json").exists():
                answer = ns.compare(tmp_path / "live", tmp_path / "finished")
                verdicts.append(answer.verdict)
                assert answer.report.origin is None, answer.report.origin
            time.sleep(0.2)
    finally:
        out, err = job.communicate(timeout=60)
    assert (out, err) == ("trained\n", "")
    assert set(verdicts) <= {"incomplete", "identical"}, verdicts
    assert "incomplete" in verdicts
    assert ns.compare(tmp_path / "live", tmp_path / "finished").verdict == "identical"


def two_runs(folder: Path) -> None:
    for name, approximate in (("target", "tanh"), ("reference", "none")):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(approximate=approximate))
        with ns.capture(folder / name, model, keep="tensors"):
            model(torch.ones(4, 8)).sum().backward()


def test_two_compares_at_once_share_an_empty_cache(tmp_path: Path) -> None:
    two_runs(tmp_path)
    command = [sys.executable, "-m", "numscope", "compare", str(tmp_path / "target"), str(tmp_path / "reference")]
    alone = subprocess.run([*command, "--json"], env=environment(), capture_output=True, text=True)
    shared = environment(XDG_CACHE_HOME=str(tmp_path / "cache"))
    both = [
        subprocess.Popen([*command, "--json"], env=shared, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for one in both:
        out, err = one.communicate(timeout=120)
        assert (one.returncode, err) == (1, "")
        assert json.loads(out) == json.loads(alone.stdout)
    assert not [file for file in (tmp_path / "cache").rglob("*") if file.suffix == ".tmp"]


@pytest.mark.parametrize("code", ["ENOLCK", "EOPNOTSUPP"])
def test_a_file_system_without_locks_and_links_is_enough(tmp_path: Path, code: str) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "sitecustomize.py").write_text(NO_LOCKS.format(code=code))
    without = {"first": str(tmp_path / "first"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for name, approximate in (("target", "tanh"), ("reference", "none")):
        (tmp_path / "job.py").write_text(
            "import torch\ntorch.manual_seed(0)\n"
            f"model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(approximate={approximate!r}))\n"
            "for _ in range(3):\n    model(torch.ones(4, 8)).sum().backward()\n"
        )
        done = numscope("run", "--keep", "tensors", "--out", tmp_path / name, "--", tmp_path / "job.py", **without)
        assert (done.returncode, done.stderr.count("Error")) == (0, 0), done.stderr
    for runs in (("target", "reference"), (f"file://{tmp_path}/target", f"file://{tmp_path}/reference")):
        places = [run if "://" in run else tmp_path / run for run in runs]
        compared = numscope("compare", *places, "--json", **without)
        assert compared.returncode == 1, compared.stderr
        assert json.loads(compared.stdout)["origin"]["call"].startswith("Functional.gelu")
    again = numscope("run", "--out", tmp_path / "target", "--", tmp_path / "job.py", **without)
    assert again.returncode == 2
    assert "already holds a run" in again.stderr
