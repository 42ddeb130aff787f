from __future__ import annotations

from pathlib import Path

import pytest

from numscope.__main__ import main


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").write_text("mine")
    assert main(["bisect", "--target", "a.py", "--reference", "b.py", "--out", str(tmp_path)]) == 2
    assert "target is not empty and not a numscope run (found: mine)" in capsys.readouterr().err
    assert (tmp_path / "target" / "mine").read_text() == "mine"
