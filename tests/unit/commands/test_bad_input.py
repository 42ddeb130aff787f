"""Mistakes of a user: one line that says how to put it right, and status 2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import numscope.commands.compare
import numscope.commands.diagnose  # noqa: F401
from numscope.__main__ import main
from tests.unit.store.batches import cut_off, write_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_run(Path("run"), steps=1)
    Path("file").write_text("no run")
    Path("empty").mkdir()
    return Path("run")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("view file --no-open", "file is a file, a run is a directory: give the directory that capture wrote"),
        ("view empty run --no-open", "empty is empty: give the directory that capture wrote"),
        ("view run nowhere --no-open", "nowhere does not exist: give the directory that capture wrote"),
        ("view run --port 99999", "--port 99999: give a number from 1 to 65535, or 0 for a free one"),
        ("compare run run --map nowhere", "nowhere cannot be read (No such file or directory): check the path"),
        ("compare run run --thresholds nowhere", "nowhere cannot be read (No such file or directory): check the path"),
        ("compare run run --scale -1", "--scale -1.0: give a number of at least 0"),
        (
            "compare run run --json no/x",
            "no/x cannot be written: there is no directory no: make it, or name another file",
        ),
        (
            "compare run run --jason x",
            "unrecognized arguments: --jason x (did you mean --json? numscope compare -h lists the arguments)",
        ),
        ("diagnose run run --suspects 0", "--suspects 0: give how many to replay, at least 1"),
        ("show run --top -3", "--top -3: give how many calls to show, 0 for all"),
        ("check run --json no/x", "no/x cannot be written: there is no directory no: make it, or name another file"),
        ("run --out file/x -- file", "cannot write a run to file/x (file is a file): choose another directory"),
        ("run --out new -- nowhere.py", "nowhere.py is not a file: give the Python script to run after --"),
        ("run --out new -- sh file", "sh is no Python script: give the script that it runs after --"),
        (
            "run --out new -- python -u file",
            "-u is an option of Python, which is running already: leave it out, or set it in the environment",
        ),
        ("run --out new -- python", "no script given: numscope run --out RUN -- script.py args"),
    ],
)
def test_it_is_said_in_one_line(run: Path, arguments: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.replace(f"{Path.cwd()}{os.sep}", "")) == ("", f"numscope: {says}\n")


def test_a_step_that_is_not_there_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "run", "run", "--step", "7"]) == 2
    out = capsys.readouterr().out
    assert "step 7 is not in both runs: the target has steps [0] of ranks [0]" in out
    assert "no pair of tensors differs" not in out


def test_what_is_not_measured_is_not_said_to_be_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run", steps=0)
    assert main(["check", str(tmp_path / "run")]) == 2
    assert "has no calls, so nothing can be said" in capsys.readouterr().err


def test_estimates_are_explained_only_where_one_is_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "run", "run"]) == 0
    assert "estimated" not in capsys.readouterr().out


def test_what_is_missing_is_said_before_the_work(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("compare", "diagnose"):
        monkeypatch.setattr(f"numscope.commands.{module}.find_spec", lambda name: None)
    assert main(["compare", "run", "run", "--xlsx", "x.xlsx", "--json", "x.json"]) == 2
    assert capsys.readouterr() == (
        "",
        "numscope: compare --xlsx needs the package xlsxwriter: pip install xlsxwriter\n",
    )
    assert not Path("x.json").exists()
    assert main(["diagnose", "run", "run"]) == 2
    assert "which is not installed here: pip install torch" in capsys.readouterr().err


def test_steps_that_were_cut_off_are_exported_as_they_are_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut_off(Path("run"))
    assert main(["export", "run", "out", "--format", "npy"]) == 0
    assert len(list(Path("out/step0/rank0").glob("*.npy"))) > 0
