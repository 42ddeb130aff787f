from __future__ import annotations

from pathlib import Path

import pytest

from numscope.__main__ import main
from numscope.diagnose.bisect.bisection import _edition, job


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").write_text("mine")
    assert main(["bisect", "--target", "a.py", "--reference", "b.py", "--out", str(tmp_path)]) == 2
    assert "target is not empty and not a numscope run (found: mine)" in capsys.readouterr().err
    assert (tmp_path / "target" / "mine").read_text() == "mine"


def test_a_pass_of_an_edited_script_is_not_done(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    seen = []
    for text in ("a = 1\n", "a = 2\n", "a = 2\n"):
        script.write_text(text)
        seen.append(_edition(job("target", f"python {script} --steps 2")))
    assert seen[0] != seen[1] == seen[2]
    assert _edition(job("target", "-m package.train")) == ""
