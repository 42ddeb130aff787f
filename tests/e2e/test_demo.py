"""`numscope demo`: what a newcomer sees first has to work, and to name the line."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest


def demo(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "numscope", "demo", *words], cwd=folder, capture_output=True, text=True, timeout=250
    )


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("demo")
    return folder, demo(folder)


def test_it_names_the_wrong_line(first: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = first
    assert done.returncode == 0, done.stderr
    lines = (folder / "demo" / "ported.py").read_text().splitlines()
    wrong = next(number for number, line in enumerate(lines, 1) if "tanh" in line)
    assert "diverged" in done.stdout.lower()
    assert "Functional.gelu.2.forward" in done.stdout
    assert f"ported.py:{wrong}" in done.stdout
    assert lines[wrong - 1].strip() in done.stdout
    assert "Warning" not in done.stderr


def test_it_writes_the_report_and_says_how_to_go_on(first: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = first
    report = (folder / "demo" / "report.html").read_text(encoding="utf-8")
    assert report.lstrip().lower().startswith("<!doctype html")
    assert "numscope view demo/runs/target demo/runs/reference" in done.stdout


def test_once_the_line_is_put_right_the_runs_are_identical(
    first: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = first
    ported = folder / "demo" / "ported.py"
    ported.write_text(
        ported.read_text().replace('F.gelu(x, approximate="tanh") if self.quick else F.gelu(x)', "F.gelu(x)")
    )
    done = demo(folder)
    assert done.returncode == 0, done.stderr
    assert "identical" in done.stdout.lower()
    assert "diverged" not in done.stdout.lower()
    assert "ported.py was edited" in done.stderr


def test_it_leaves_files_that_are_not_its_own_alone(tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text("raise SystemExit('a stranger')\n")
    done = demo(tmp_path, "--out", ".")
    assert done.returncode == 2
    assert "is not the demo's own file" in done.stderr
    assert (tmp_path / "reference.py").read_text() == "raise SystemExit('a stranger')\n"


def test_the_scripts_differ_in_one_layer_alone() -> None:
    reference, ported = (
        resources.files("numscope.demo").joinpath(name).read_text() for name in ("reference.py", "ported.py")
    )
    assert ported.count("tanh") == 1
    assert "tanh" not in reference
