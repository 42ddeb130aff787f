"""The code of a job is found again without the job being run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.replay.job_code import JobCode, is_guarded

DEFINITIONS = """
import math
from dataclasses import dataclass

try:
    import not_installed_anywhere
except ImportError:
    not_installed_anywhere = None

WIDTH, DEPTH = 4, 2
DOUBLE = lambda x: work(x)

@dataclass
class Config:
    width: int = WIDTH

class Outer:
    class Inner:
        factor = math.pi

def area(r):
    return math.pi * r * r
"""
WORK = """
import pathlib, sys
pathlib.Path(__file__).with_suffix(".ran").write_text(" ".join(sys.argv[1:]))
VALUE = pathlib.Path(__file__).read_text()
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_script_without_a_guard_is_never_run_but_gives_its_definitions(tmp_path: Path) -> None:
    script = written(tmp_path / "train.py", DEFINITIONS + WORK + "for _ in range(3):\n    train()\n")
    sources = JobCode(str(script), ["train.py", "--fast"])
    assert not is_guarded(str(script))
    config = sources.find("__main__:Config", str(script))()
    assert config.width == 4
    assert sources.find("__main__:Outer.Inner", str(script)).factor == pytest.approx(3.14159, rel=1e-5)
    assert sources.find("__main__:area", str(script))(1.0) > 3
    assert not script.with_suffix(".ran").exists()
    with pytest.raises(CannotReplay, match="only its definitions are taken"):
        sources.find("__main__:VALUE", str(script))
    assert str(sources.origin_of("__main__:Config", str(script))) == "from the definitions of train.py"


@pytest.mark.parametrize("guard", ["if __name__ == '__main__':", 'if "__main__" == __name__:'])
def test_a_script_with_a_guard_is_imported_with_the_runs_arguments(tmp_path: Path, guard: str) -> None:
    script = written(tmp_path / "train.py", DEFINITIONS + WORK + f"\n{guard}\n    raise SystemExit('it ran')\n")
    before = list(sys.argv)
    sources = JobCode(str(script), ["train.py", "--fast"])
    assert sources.find("__main__:VALUE", str(script))
    assert script.with_suffix(".ran").read_text() == "--fast"
    assert sys.argv == before
    assert str(sources.origin_of("__main__:Config", str(script))) == "imported from train.py"


def test_what_lies_beside_the_script_is_imported_and_another_file_of_that_name_is_refused(tmp_path: Path) -> None:
    for side in ("one", "two"):
        (tmp_path / side).mkdir()
        written(tmp_path / side / "layers_of_a_test.py", f"NAME = '{side}'\nclass Layer: name = NAME\n")
    before = list(sys.path)
    try:
        one = JobCode(str(tmp_path / "one" / "train.py"), [])
        assert one.find("layers_of_a_test:Layer", str(tmp_path / "one" / "layers_of_a_test.py")).name == "one"
        two = JobCode(str(tmp_path / "two" / "train.py"), [])
        with pytest.raises(CannotReplay, match=r"is .*one.*here, in the run it was .*two"):
            two.find("layers_of_a_test:Layer", str(tmp_path / "two" / "layers_of_a_test.py"))
    finally:
        sys.modules.pop("layers_of_a_test", None)
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("__main__:Net", "class Net(:", "can't be read"),
        ("__main__:Net", "if __name__ == '__main__': pass\nraise SystemExit('usage')", "raised SystemExit: usage"),
        ("__main__:Other", "class Net: pass", "has no Other"),
        ("__main__:build.<locals>.Net", "", "defined inside a function"),
        ("no_such_package_here:Net", "", "can't be imported"),
    ],
)
def test_what_cannot_be_found_is_said(tmp_path: Path, name: str, text: str, why: str) -> None:
    script = written(tmp_path / "train.py", text)
    with pytest.raises(CannotReplay, match=why):
        JobCode(str(script), []).find(name, str(script))


def test_a_script_that_is_gone_is_said() -> None:
    with pytest.raises(CannotReplay, match="is not here"):
        JobCode("/nowhere/train.py", []).find("__main__:Net", None)


def test_code_that_came_with_a_run_or_that_others_can_write_is_not_executed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for path in (run / "evil.py", tmp_path / "shared.py"):
        path.write_text("import os\nos.mkdir('executed')\nclass Net: pass\nif __name__ == '__main__': pass\n")
    (tmp_path / "shared.py").chmod(0o666)
    with pytest.raises(CannotReplay, match=r"evil\.py came with the run"):
        JobCode(str(run / "evil.py"), [], run)
    with pytest.raises(CannotReplay, match=r"evil\.py came with the run"):
        JobCode("", [], run).find("__main__:Net", str(run / "evil.py"))
    with pytest.raises(CannotReplay, match=r"shared\.py can be written by others"):
        JobCode(str(tmp_path / "shared.py"), [], run)
