"""Recorded calls lie in memory for less than a second, also in a job that waits for something."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
import torch

import numscope as ns
from numscope.capture.recording import unwritten

ROOT = Path(__file__).parents[2]


def names(path: Path) -> list[str]:
    try:
        return [str(name) for name in ns.open_run(path).calls["name"].to_pylist()]
    except ns.RunError:  # not begun
        return []


def wait_until_written(path: Path, name: str) -> None:
    deadline = time.monotonic() + 30  # a busy machine; else less than a second
    while name not in names(path):
        assert time.monotonic() < deadline, names(path)
        time.sleep(0.05)


def test_calls_before_a_wait_are_written_during_it(tmp_path: Path) -> None:
    with ns.capture(tmp_path / "run", torch.nn.Linear(4, 4)) as cap:
        torch.ones(3).exp()
        wait_until_written(tmp_path / "run", "Tensor.exp.0.forward")
        torch.ones(3).sin()
        cap.step()
    run = ns.open_run(tmp_path / "run")
    assert (run.steps, run.incomplete, run.faults()) == ([0], [], 0)
    assert [name for name in names(tmp_path / "run") if name.startswith("Tensor.")] == [
        "Tensor.exp.0.forward",
        "Tensor.sin.0.forward",
    ]


def test_a_steady_job_hands_over_at_the_end_of_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "numscope.capture.recording.recorder.Recorder.flush_unmoved", lambda *_: pytest.fail("not needed")
    )
    monkeypatch.setattr(unwritten, "LOOK", 0.1)
    with ns.capture(tmp_path / "run", None):
        x = torch.ones(3)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            x = x.sin()
        wait_until_written(tmp_path / "run", "Tensor.sin.0.forward")


def test_a_copy_that_takes_longer_than_the_limit_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ns.capture(tmp_path / "run", None, keep="tensors", on_error="raise") as cap:
        tensors = cap._frontend.watch.tensors  # type: ignore[attr-defined]
        inner, calls = type(tensors)._keep, []

        def slow(self: object, number: int, tensor: torch.Tensor) -> bool:
            calls.append(number)
            if len(calls) == 1:
                cap._recorder.flush()  # as the thread does in the middle of a copy
            return bool(inner(self, number, tensor))

        monkeypatch.setattr(type(tensors), "_keep", slow)
        y = torch.arange(5.0).exp()
        view = y[1:3]
        view.sin()
        cap.step()
    run = ns.open_run(tmp_path / "run")
    assert len(set(calls)) > 1
    assert np.array_equal(run.tensor("Tensor.exp.0.forward.output.0"), y.numpy())
    assert np.array_equal(run.tensor("Tensor.sin.0.forward.input.0"), view.numpy())
    assert run.faults() == 0


def test_no_thread_is_left(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    cap = ns.capture(tmp_path / "run", None)
    for _ in range(3):
        cap.start()
        torch.ones(3).exp()
        cap.step()
        cap.stop()
    cap.close()
    assert {thread.name for thread in set(threading.enumerate()) - before} == set()


def test_a_disk_that_fills_while_the_job_waits_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.warns(UserWarning, match="numscope stopped recording into .*No space left") as told,
        ns.capture(tmp_path / "run", None) as cap,
    ):
        torch.ones(3).exp()
        wait_until_written(tmp_path / "run", "Tensor.exp.0.forward")

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("numscope.store.segments.write_all", full)
        torch.ones(3).sin()
        time.sleep(2 * unwritten.LOOK)
        torch.ones(3).cos()
        time.sleep(6 * unwritten.LOOK)
        cap.step()
        torch.ones(3).cos()
        cap.step()
    assert len([one for one in told if "stopped recording" in str(one.message)]) == 1


STARTER = """
import time, torch
import torch.multiprocessing as mp

def work(rank):
    import os
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    model = torch.nn.Linear(2, 2)
    model(torch.full((2, 2), float(rank))).sum().backward()
    torch.optim.SGD(model.parameters()).step()

if __name__ == "__main__":
    torch.ones(2).exp()
    time.sleep(1.5)
    mp.spawn(work, nprocs=2)
    time.sleep(1)
    torch.ones(2).exp()
"""


def test_a_process_that_starts_the_others_gives_its_rank_to_one_of_them(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(textwrap.dedent(STARTER))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "numscope", "run", "--out", "run", "--", "job.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "could not" not in done.stderr, done.stderr
    assert "stopped recording" not in done.stderr, done.stderr
    run = ns.open_run(tmp_path / "run")
    assert run.ranks == [0, 1]
    assert run.manifest["world_size"] == 2
    assert run.ends() == {0: "closed", 1: "closed"}
    calls = run.calls
    assert not pc.any(pc.equal(calls["name"], "Tensor.exp.0.forward")).as_py()


def test_a_script_that_dies_in_its_first_step_leaves_its_calls(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import os, signal, time, torch\ntorch.ones(2).exp()\ntime.sleep(4)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "numscope", "run", "--out", "run", "--", "job.py"]
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
    run = ns.open_run(tmp_path / "run")
    assert run.incomplete == [(0, 0)]
    assert run.ends() == {0: ""}
    assert "Tensor.exp.0.forward" in names(tmp_path / "run")
