"""`numscope doctor`: what changes numbers on this machine, in a run, between two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import numscope as ns
from numscope.__main__ import main


@pytest.fixture
def run(tmp_path: Path) -> Path:
    model = torch.nn.Linear(2, 2)
    with ns.capture(tmp_path / "run", model) as cap:
        model(torch.ones(1, 2)).sum().backward()
        cap.step()
    return tmp_path / "run"


def test_this_machine_has_settings_versions_and_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "-"]) == 0
    facts = json.loads(capsys.readouterr().out)["facts"]
    assert facts["settings"]["torch.get_num_threads()"] == torch.get_num_threads()
    assert facts["versions"]["torch"] == torch.__version__


def test_a_run_tells_what_it_was_captured_with(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(run)]) == 0
    assert "torch.get_float32_matmul_precision()" in capsys.readouterr().out


def test_two_runs_of_one_kind_differ_in_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(run), str(run)]) == 0
    assert capsys.readouterr().out == "no setting, version or chip differs\n"


def test_a_setting_that_differs_is_told_and_is_exit_status_1(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        model = torch.nn.Linear(2, 2)
        with ns.capture(run.parent / "other", model) as cap:
            model(torch.ones(1, 2)).sum().backward()
            cap.step()
    finally:
        torch.set_num_threads(threads)
    assert main(["doctor", str(run), str(run.parent / "other")]) == 1
    assert f"torch.get_num_threads()  {threads}  against  {threads + 1}" in capsys.readouterr().out


def test_three_runs_are_one_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "a", "b", "c"]) == 2
    assert "at most two runs" in capsys.readouterr().err
