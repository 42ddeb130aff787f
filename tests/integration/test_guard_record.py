"""The record that the guard leaves when it strikes, or when the job ends otherwise: a run with the last calls."""

from __future__ import annotations

import errno
import gc
import math
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import numscope as ns
from numscope.check.checking import check
from numscope.store.writer import RunWriter
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


@pytest.mark.parametrize("level", ["module", "mix"])
def test_every_gradient_of_the_last_calls_has_its_fingerprint(level: str, tmp_path: Path) -> None:
    """Nobody but the guard holds on to them: they are there when it strikes in the step after."""

    def job() -> None:
        for step in range(2):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4, requires_grad=True)).square().mean()
            loss.backward()
            if step == 1:
                raise ValueError

    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError), ns.guard(model, record=tmp_path / "run", level=level, calls=500):  # noqa: PT011
        job()
    run = ns.open_run(tmp_path / "run")
    back = [row for row in run.tensors.to_pylist() if ".backward." in row["name"]]
    assert len(back) > 8
    assert all(row["hash"] is not None for row in back)
    assert run.skipped() == {}


def test_of_an_origin_in_backward_the_forward_calls_tensors_are_there_too(tmp_path: Path, struck: Struck) -> None:
    model = Block(lambda self, x: torch.sqrt(self.parts[0](x) * 0).sum(), nn.Linear(4, 4))
    struck(model, lambda: model(torch.randn(2, 4)).backward(), tmp_path / "run")
    run = ns.open_run(tmp_path / "run")
    assert (run.tensor("Torch.sqrt.0.backward.input.0") == 1).all()
    assert np.isinf(run.tensor("Torch.sqrt.0.backward.output.0")).all()
    assert (run.tensor("Torch.sqrt.0.forward.input.0") == 0).all()


def test_what_a_call_in_place_was_given_is_there_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(ns.NonFiniteError), ns.guard(record=tmp_path / "run"):
        torch.full((3,), 7.0).div_(0)
    run = ns.open_run(tmp_path / "run")
    assert run.tensor("Tensor.div_.0.forward.input.0").tolist() == [7.0, 7.0, 7.0]
    assert run.tensor("Tensor.div_.0.forward.output.0").tolist() == [math.inf] * 3
    assert run.skipped() == {}


def test_what_is_too_large_to_be_copied_before_it_is_overwritten_is_said_to_be_overwritten(tmp_path: Path) -> None:
    with pytest.raises(ns.NonFiniteError), ns.guard(record=tmp_path / "run"):
        torch.full((400_000,), 7.0).div_(0)
    run = ns.open_run(tmp_path / "run")
    with pytest.raises(ns.NotKeptError):
        run.tensor("Tensor.div_.0.forward.input.0")
    assert (run.tensor("Tensor.div_.0.forward.output.0") == math.inf).all()
    assert run.skipped() == {"overwritten before it was recorded": 2}  # where it was made, and where it was given


def test_an_optimizers_step_leaves_gradient_and_state_and_says_what_it_divided_by(
    tmp_path: Path, struck: Struck
) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), eps=0.0)

    def job() -> None:
        (model(torch.randn(2, 3)).sum() * 0).backward()
        optimizer.step()

    reason = struck(model, job, tmp_path / "run")["reason"]
    assert "the gradient is 0, exp_avg is 0, exp_avg_sq is 0, lr=0.001, eps=0" in reason
    run = ns.open_run(tmp_path / "run")
    name = "Optimizer.Adam.step.0"
    assert (run.tensor(f"{name}.parameters_grad.weight") == 0).all()
    assert (run.tensor(f"{name}.output.state.weight.exp_avg_sq") == 0).all()
    assert math.isnan(run.tensor(f"{name}.output.weight").sum())
    with pytest.raises(ns.NotKeptError):
        run.tensor(f"{name}.parameters.weight")


def test_a_parameter_is_kept_in_its_modules_slot(tmp_path: Path, struck: Struck) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    struck(model, lambda: model(torch.ones(2, 4)), tmp_path / "run")
    run = ns.open_run(tmp_path / "run")
    assert math.isnan(run.tensor("Module.0.Linear.forward.0.parameters.weight")[0, 0])
    assert run.tensor("Module.0.Linear.forward.0.parameters.bias").shape == (4,)


def test_what_the_ring_keeps_alive_is_bounded() -> None:
    """A chain of calls, each 1 MiB in forward and in backward; the ring may keep four."""
    x = torch.ones((1 << 18) - 8, requires_grad=True)  # a size that nothing else in this process has
    with ns.guard(record=None, memory=4 << 20, calls=1000):
        for _ in range(3):
            y = x
            for _ in range(40):
                y = y * 1.0
            y.sum().backward()
            del y
        ring = sum(storage.nbytes() for storage in distinct_storages() if storage.nbytes() == 4 * x.numel())
    assert ring <= 8 << 20  # four and what they were given, x, its gradient


def distinct_storages() -> list[Any]:
    gc.collect()
    tensors = [item for item in gc.get_objects() if type(item) is torch.Tensor]
    return list({item.untyped_storage().data_ptr(): item.untyped_storage() for item in tensors}.values())


@pytest.mark.parametrize("level", ["module", "mix"])
def test_check_of_a_record_says_what_the_guard_said(level: str, tmp_path: Path, struck: Struck) -> None:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = torch.exp(self.parts[0](x).abs() * 1e6)
        return self.parts[1](x).sum()

    model = Block(work, nn.Linear(4, 4), nn.Linear(4, 4))
    origin = struck(model, lambda: model(torch.ones(2, 4)), tmp_path / "run", level=level)
    found = check(tmp_path / "run")
    assert found.origin is not None
    assert found.origin.to_dict() == origin
    assert any(tensor.counts.posinf for tensor in found.tensors)
    assert "origin" in found.verdicts[0, 0].values()


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


def test_a_record_that_cannot_be_written_does_not_hide_the_origin(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ns.NonFiniteError) as caught, ns.guard(record=tmp_path / "file" / "run") as guard:
        torch.log(torch.zeros(2))
    assert caught.value.origin["call"] == "Torch.log.0.forward"
    assert "the record could not be written" in str(caught.value)
    assert guard.path is None
    with pytest.warns(RuntimeWarning, match="could not write the guard's record"), pytest.raises(ZeroDivisionError):  # noqa: PT012, SIM117
        with ns.guard(record=tmp_path / "file" / "run"):
            torch.ones(3).mul(2)
            raise ZeroDivisionError


def test_a_disk_that_fills_up_while_it_is_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunWriter, "close", full)
    with (
        pytest.raises(ns.NonFiniteError, match=r"could not be written: .*No space left"),
        ns.guard(record=tmp_path / "run"),
    ):
        torch.log(torch.zeros(2))


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
        ("sys.exit(3)", "SystemExit: 3"),
    ],
)
@pytest.mark.parametrize("deferred", [False, True])
def test_a_crash_that_no_with_block_sees_leaves_a_record(end: str, reason: str, deferred: bool, tmp_path: Path) -> None:
    code = f"""
        import os, signal, sys, torch, numscope as ns
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what starts in the background may be told to ignore it
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


@pytest.mark.parametrize("code", ["sys.exit()", "sys.exit(0)", "pass"])
@pytest.mark.parametrize("style", ["with guard:", "guard.start()\nif True:"])
def test_a_job_that_ends_well_leaves_no_record(style: str, code: str, tmp_path: Path) -> None:
    script = f"import sys, torch, numscope as ns\nguard = ns.guard(record={str(tmp_path / 'run')!r})\n"
    script += f"{style}\n    torch.ones(3).mul(2)\n    {code}\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "run").exists()


def test_what_is_still_on_a_device_when_the_job_ends_is_told(tmp_path: Path) -> None:
    code = f"""
        import torch, numscope as ns
        guard = ns.guard(record={str(tmp_path / "run")!r}, deferred=True)
        guard.start()
        torch.log(torch.zeros(2))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert "Torch.log.0.forward turned finite inputs into 2 -inf" in done.stderr
    assert ns.open_run(tmp_path / "run").manifest["guard"]["origin"]["call"] == "Torch.log.0.forward"
