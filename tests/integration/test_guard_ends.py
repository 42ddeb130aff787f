"""How a job under the guard ends, or goes on: signals, forks, and a place for the record that is taken."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import numscope as ns


def job(code: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a directory."""
    head = "import os, signal, sys, torch, numscope as ns\n"
    script = head + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=place)


@pytest.mark.parametrize("end", ["sys.exit(3)", "raise ValueError", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_a_child_process_is_not_guarded_and_leaves_no_record(end: str, tmp_path: Path) -> None:
    code = f"""
        with ns.guard(record="run"):
            torch.ones(3).mul(2)
            if os.fork() == 0:
                torch.log(torch.zeros(2))
                {end}
            print(os.wait()[1])
            torch.ones(3).mul(3)
    """
    done = job(code, tmp_path)
    assert (done.returncode, done.stdout.strip() != "0") == (0, True), done.stderr
    assert "NonFiniteError" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_the_job_leaves_a_record(name: str, tmp_path: Path) -> None:
    code = f"""
        signal.signal(signal.{name}, signal.SIG_DFL)  # nohup has its children ignore it
        guard = ns.guard(record="run")
        guard.start()
        torch.ones(3).mul(2)
        os.kill(os.getpid(), signal.{name})
    """
    assert job(code, tmp_path).returncode == -signal.Signals[name]
    assert name in ns.open_run(tmp_path / "run").manifest["guard"]["reason"]


def test_a_signal_that_does_not_end_the_job_does_not_end_the_guard(tmp_path: Path) -> None:
    code = """
        signal.signal(signal.SIGTERM, lambda *_: print("saved"))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with ns.guard(record="run"):
            torch.ones(3).mul(2)
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            torch.log(torch.zeros(2))
    """
    done = job(code, tmp_path)
    assert (done.returncode, done.stdout) == (1, "saved\n"), done.stderr
    assert "SIGTERM" in ns.open_run(tmp_path / "run").manifest["guard"]["reason"]
    assert ns.open_run(tmp_path / "run-2").manifest["guard"]["origin"]["call"] == "Torch.log.0.forward"


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_lies_where_the_record_should_go_stays_and_the_record_goes_beside_it(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "run"
    precious = place if kind == "file" else place / "notes.txt"
    precious.parent.mkdir(exist_ok=True)
    precious.write_text("precious")
    with pytest.raises(ns.NonFiniteError, match=r"the record is in .*run-2"), ns.guard(record=place):
        torch.log(torch.zeros(2))
    assert precious.read_text() == "precious"
    assert ns.open_run(tmp_path / "run-2").calls.num_rows == 2
