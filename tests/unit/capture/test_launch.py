"""Commands that may stand after `numscope run … --`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from numscope.capture.launch import Program, program
from numscope.core.errors import SettingsError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "bin").mkdir()
    for name, first in (("launcher", f"#!{sys.executable}"), ("tool", "#!/bin/sh")):
        (tmp_path / "bin" / name).write_text(f"{first}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("train.py --x", Program("train.py", ("--x",))),
        ("python train.py --x", Program("train.py", ("--x",))),
        ("python3.11 train.py", Program("train.py", ())),
        (f"{sys.executable} train.py", Program("train.py", ())),
        ("-m pkg.train --x", Program("pkg.train", ("--x",), is_module=True)),
        ("python -m pkg.train", Program("pkg.train", (), is_module=True)),
    ],
)
def test_scripts_and_modules_as_python_takes_them(command: str, meant: Program) -> None:
    assert program(command.split()) == meant


def test_a_command_that_is_a_python_script_is_found_as_the_shell_finds_it(here: Path) -> None:
    assert program(["launcher", "--n", "2", "train.py"]) == Program(
        str(here / "bin" / "launcher"), ("--n", "2", "train.py")
    )


@pytest.mark.parametrize("command", ["", "python", "-m", "tool train.py", "nowhere.py", "./nowhere"])
def test_what_cannot_be_run_says_what_can(command: str) -> None:
    with pytest.raises(SettingsError, match="give"):
        program(command.split())


def test_an_error_of_the_script_is_shown_without_our_frames(here: Path) -> None:
    (here / "train.py").write_text("import torch\ntorch.ones(2) @ torch.ones(3)\n")
    command = [sys.executable, "-m", "numscope", "run", "--out", "r", "--", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if "File" in line]
    assert lines == ['  File "train.py", line 2, in <module>']


def test_a_script_that_calls_no_framework_is_said_to_have_left_nothing(here: Path) -> None:
    command = [sys.executable, "-m", "numscope", "run", "--out", "r", "--", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr == "numscope: nothing was recorded into r: the script loaded neither torch nor paddle\n"


def test_an_older_run_is_not_taken_for_what_was_recorded(here: Path) -> None:
    (here / "first.py").write_text("import torch\ntorch.ones(2) + 1\n")
    for script, says in (("first.py", ""), ("train.py", "numscope: nothing was recorded into r")):
        command = [sys.executable, "-m", "numscope", "run", "--overwrite", "--out", "r", "--", script]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0
        assert done.stderr.startswith(says)
        assert bool(done.stderr) is bool(says)


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--steps=50", ": no step that ran was asked for (steps, ranks, control)"),
        ("--scope=zzz", ""),
        ("--level=mix", ": no call of torch was seen"),
    ],
)
def test_the_reason_why_nothing_was_recorded_is_the_true_one(here: Path, option: str, why: str) -> None:
    body = "import torch\n" + ("" if "mix" in option else "torch.ones(2) + 1\n")
    (here / "train.py").write_text(body)
    command = [sys.executable, "-m", "numscope", "run", "--out", "r", option, "--", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == f"numscope: nothing was recorded into r{why}"
    assert ("the scope zzz matched none of" in done.stderr) == (option == "--scope=zzz")
