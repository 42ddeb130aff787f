"""Machines that lack something: a terminal that shows every letter, room on the disk, a name in UTF-8."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from numscope.__main__ import main
from numscope.core.errors import RunError, writing
from tests.unit.store.batches import write_run


@pytest.mark.parametrize("words", ["-h", "run -h", "compare run run --top 1", "show run"])
def test_a_stream_that_is_not_utf8_gets_what_it_can_show(tmp_path: Path, words: str) -> None:
    write_run(tmp_path / "run", steps=1)
    command = [sys.executable, "-m", "numscope", *words.split()]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "60"}
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("ascii")


def test_a_script_has_its_stream_as_python_gives_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys\nprint(sys.stdout.errors)\n")
    command = [sys.executable, "-m", "numscope", "run", "--out", "run", "--", "script.py"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stdout == "strict\n"


def test_a_full_disk_is_told_with_the_place() -> None:
    says = r"^here could not be written \(No space left on device\): make room"
    with pytest.raises(RunError, match=says) as info, writing("here"):
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: …")
    assert "Detail" not in str(info.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("form", ["json", "csv", "html", "xlsx"])
def test_an_output_on_a_full_disk_is_one_line(tmp_path: Path, form: str, capfd: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run", steps=1)
    run = str(tmp_path / "run")
    assert main(["compare", run, run, f"--{form}", "/dev/full"]) == 2
    says = "numscope: /dev/full could not be written (No space left on device): make room, or choose another place\n"
    assert capfd.readouterr().err == says
