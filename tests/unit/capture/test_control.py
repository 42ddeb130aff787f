"""A control file is obeyed where this user wrote it, and never harms the job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from numscope.capture.control import ControlFile


def asked(control: ControlFile, steps: int) -> int:
    return sum(control.asks() for _ in range(steps))


@pytest.mark.parametrize(("text", "steps"), [("", 1), ("3", 3), ("no number", 1), ("²", 1), ("-2", 1)])
def test_a_file_asks_for_steps(text: str, steps: int, tmp_path: Path) -> None:
    control = ControlFile(tmp_path / "look")
    assert asked(control, 3) == 0
    (tmp_path / "look").write_text(text)
    assert asked(control, 10) == steps


def test_a_file_that_others_can_write_asks_for_nothing(tmp_path: Path) -> None:
    control = ControlFile(tmp_path / "look")
    (tmp_path / "look").write_text("5")
    (tmp_path / "look").chmod(0o666)
    assert asked(control, 10) == 0


def test_a_pipe_does_not_stop_the_job(tmp_path: Path) -> None:
    control = ControlFile(tmp_path / "look")
    os.mkfifo(tmp_path / "look")
    assert asked(control, 10) == 0
