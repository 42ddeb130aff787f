"""What the guard leaves behind when it strikes, or when the job ends otherwise: a run with the last calls."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import numscope as ns
from tests.integration.births import Block, Struck, marked


def test_the_record_is_a_run_with_the_last_calls_and_the_origins_tensors(tmp_path: Path) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = self.parts[0](x).tanh()
        return torch.log(x * 0)

    model = Block(work, nn.Linear(4, 4))
    with pytest.raises(ns.NonFiniteError), ns.guard(model, record=tmp_path / "run", calls=10):
        model(torch.randn(2, 4))
    run = ns.open_run(tmp_path / "run")
    names = run.calls["name"].to_pylist()
    assert len(names) == 10
    assert names[-1] == "Torch.log.0.forward"
    assert "Functional.linear.19.forward" in names
    assert (run.tensor("Torch.log.0.forward.output.0") == -math.inf).all()
    assert (run.tensor("Torch.log.0.forward.input.0") == 0).all()
    prints = {row["name"]: row for row in run.tensors.to_pylist()}
    assert prints["Functional.linear.19.forward.output.0"]["l2"] > 0
    assert run.manifest["guard"]["origin"]["call"] == "Torch.log.0.forward"


@pytest.mark.parametrize("deferred", [False, True])
def test_each_call_of_the_record_is_in_its_own_step_and_the_origin_is_the_last(deferred: bool, tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def job() -> None:
        for step in range(4):
            optimizer.zero_grad()
            torch.log(model(torch.ones(2, 4)) * (step < 2) + (step < 2) * 10).sum().backward()
            optimizer.step()

    with pytest.raises(ns.NonFiniteError), ns.guard(model, record=tmp_path / "run", deferred=deferred):
        job()
    run = ns.open_run(tmp_path / "run")
    assert run.steps == [0, 1, 2]
    steps, names = run.calls["step"].to_pylist(), run.calls["name"].to_pylist()
    assert (steps[-1], names[-1]) == (2, "Torch.log.0.forward")
    assert steps == sorted(steps)
    assert [step for step, name in zip(steps, names) if name == "Torch.log.0.forward"] == [0, 1, 2]


@pytest.mark.parametrize("deferred", [False, True])
def test_masks_and_targets_of_the_origin_are_in_the_record(deferred: bool, tmp_path: Path) -> None:
    target = torch.full((3,), -100)
    with pytest.raises(ns.NonFiniteError), ns.guard(record=tmp_path / "run", deferred=deferred):
        nn.functional.cross_entropy(torch.randn(3, 4), target)
    run = ns.open_run(tmp_path / "run")
    assert (run.tensor("Functional.cross_entropy.0.forward.input.1") == -100).all()
    assert run.skipped() == {}


def test_a_warning_stands_at_the_users_line() -> None:
    def job() -> None:
        torch.log(torch.zeros(2))  # origin

    with pytest.warns(RuntimeWarning) as told, ns.guard(action="warn", record=None):
        job()
    assert (Path(told[0].filename).name, told[0].lineno) == (Path(__file__).name, marked(job))


def test_a_second_strike_has_a_record_of_its_own(tmp_path: Path, struck: Struck) -> None:
    struck(None, lambda: torch.log(torch.zeros(2)), tmp_path / "run")
    with pytest.raises(ns.NonFiniteError, match="run-2"), ns.guard(record=tmp_path / "run"):
        torch.log(torch.zeros(2))
    assert ns.open_run(tmp_path / "run-2").calls.num_rows == 2


def test_any_exception_leaves_a_record(tmp_path: Path) -> None:
    def job() -> None:
        torch.ones(3).mul(2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), ns.guard(record=tmp_path / "run"):
        job()
    run = ns.open_run(tmp_path / "run")
    assert run.calls["name"].to_pylist() == ["Torch.ones.0.forward", "Tensor.mul.0.forward"]
    assert "ZeroDivisionError" in run.manifest["guard"]["reason"]


def test_sigterm_leaves_a_record_and_ends_the_job(tmp_path: Path) -> None:
    code = f"""
        import os, signal, torch, numscope as ns
        with ns.guard(record={str(tmp_path / "run")!r}):
            torch.ones(3).mul(2)
            os.kill(os.getpid(), signal.SIGTERM)
            torch.ones(3).mul(3)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGTERM, done.stderr
    run = ns.open_run(tmp_path / "run")
    assert run.calls.num_rows == 2
    assert "SIGTERM" in run.manifest["guard"]["reason"]


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("raise ValueError('bad batch')", "ValueError: bad batch"),
        ("os.kill(os.getpid(), signal.SIGINT)", "KeyboardInterrupt"),
    ],
)
@pytest.mark.parametrize("deferred", [False, True])
def test_a_crash_that_no_with_block_sees_leaves_a_record(end: str, reason: str, deferred: bool, tmp_path: Path) -> None:
    code = f"""
        import os, signal, torch, numscope as ns
        guard = ns.guard(record={str(tmp_path / "run")!r}, deferred={deferred})
        guard.start()
        torch.ones(3).mul(2)
        {end}
        torch.ones(3).mul(3)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode != 0
    run = ns.open_run(tmp_path / "run")
    assert run.calls["name"].to_pylist() == ["Torch.ones.0.forward", "Tensor.mul.0.forward"]
    assert run.tensors.num_rows == 3
    assert reason in run.manifest["guard"]["reason"]
