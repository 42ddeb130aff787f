"""The wheel, with the packages it asks for and no framework, opens and compares runs, and shows them in a browser."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from importlib import metadata
from pathlib import Path

import pytest
import torch

import numscope as ns

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def needed(names: list[str]) -> set[str]:
    """Return the distributions that these need, as far as they are installed here."""
    found: set[str] = set()
    while names:
        name = names.pop().split(";")[0]
        name = "".join(letter if letter.isalnum() or letter in "-_." else " " for letter in name).split()[0].lower()
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # of another version of Python
            continue
        if name not in found:
            found.add(name)
            names += [one for one in requirements if "extra ==" not in one]
    return found


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the `numscope` of a fresh environment: the built wheel, and the packages of its default install."""
    if there := os.environ.get("MATRIX_PROGRAM"):  # of an environment that is there: `make matrix`
        return Path(there)
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    venv.create(folder / "env", with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "env")}))
    for name in needed(list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])):
        for top in {Path(file).parts[0] for file in metadata.files(name) or [] if ".." not in Path(file).parts}:
            source = Path(str(metadata.distribution(name).locate_file(top)))
            if source.exists() and top != "__pycache__" and not (site / top).exists():
                (site / top).symlink_to(source)
    (wheel,) = folder.glob("*.whl")
    install = [sys.executable, "-m", "pip", "--python", str(folder / "env" / "bin" / "python"), "install"]
    subprocess.run([*install, "-qq", "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    return folder / "env" / "bin" / "numscope"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, approximate in (("target", "tanh"), ("reference", "none")):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(approximate=approximate))
        with ns.capture(folder / name, model):
            model(torch.ones(4, 8)).sum().backward()
    return folder


def test_it_has_no_framework(program: Path) -> None:
    code = "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('paddle'))"
    done = subprocess.run([program.with_name("python"), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "None"]


def test_it_compares_runs_into_every_kind_of_file(program: Path, runs: Path) -> None:
    kinds = ("json", "csv", "parquet", "xlsx", "html")
    files = [word for kind in kinds for word in (f"--{kind}", f"answer.{kind}")]
    done = subprocess.run([program, "compare", "target", "reference", *files], cwd=runs, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert "gelu" in done.stdout
    assert all((runs / f"answer.{kind}").stat().st_size for kind in kinds)


@pytest.mark.parametrize("command", [["show", "target"], ["check", "target"], ["doctor", "target", "reference"]])
def test_it_reads_runs(program: Path, runs: Path, command: list[str]) -> None:
    done = subprocess.run([program, *command], cwd=runs, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_needs_torch_says_so_in_a_line(program: Path, runs: Path) -> None:
    done = subprocess.run([program, "diagnose", "target", "reference"], cwd=runs, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install torch" in done.stderr


def test_the_viewer_starts(program: Path, runs: Path) -> None:
    view = subprocess.Popen([program, "view", "target", "reference", "--no-open"], cwd=runs, stdout=subprocess.PIPE)
    try:
        assert view.stdout is not None
        address = view.stdout.readline().decode().split()[-1]
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(address, timeout=30) as answer:
            assert b"numscope" in answer.read()
    finally:
        view.terminate()
        view.communicate(timeout=30)


def test_a_reader_that_goes_away_costs_no_file(program: Path, runs: Path) -> None:
    command = f"{program} compare target reference --html early.html --xlsx early.xlsx | head -n 1"
    subprocess.run(["bash", "-c", command], cwd=runs, check=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert (runs / "early.html").exists()
    assert (runs / "early.xlsx").exists()
