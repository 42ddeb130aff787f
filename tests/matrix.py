"""Tests numscope with other versions of Python and torch: `python -m tests.matrix`, all of them, or the cells that are named.

    python -m tests.matrix 3.10-2.2 3.14t-2.13     two cells
    python -m tests.matrix 3.13                    the cells of one Python; `-2.6` those of one torch, `3.13-` without torch
    python -m tests.matrix --part                  what CI runs
    python -m tests.matrix --cpu                   torch's own index of builds for the CPU: a tenth of the download
    python -m tests.matrix --table                 nothing is run: docs/reference/versions.md has the results

Interpreters are those of this machine (on the path, pyenv's, in MATRIX_PYTHONS), else those that uv fetches. Each cell is
an environment of its own in .matrix/, with the wheel in it, and is deleted when it is done; bench/results/matrix.json keeps
what came out.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
PLACE = ROOT / ".matrix"
RESULTS = ROOT / "bench" / "results" / "matrix.json"
PAGE = ROOT / "docs" / "reference" / "versions.md"

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.13t", "3.14", "3.14t")
# The last release of each, and the Pythons for which it has wheels.
TORCHES = {
    "2.2": ("2.2.2", ("3.10", "3.11", "3.12")),
    "2.4": ("2.4.1", ("3.10", "3.11", "3.12")),
    "2.6": ("2.6.0", ("3.10", "3.11", "3.12", "3.13")),
    "2.9": ("2.9.1", PYTHONS),
    "2.11": ("2.11.0", PYTHONS),
    "2.13": ("2.13.0", tuple(python for python in PYTHONS if python != "3.13t")),
}
WITHOUT = ""  # no torch: runs are opened, compared and viewed
MAKE_TEST = ("3.11", "2.13")  # what `make test` runs every test with
PART = (("3.10", WITHOUT), ("3.13", WITHOUT))  # without torch: a torch of another version is gigabytes

# Those that touch torch and Python most: hooks, modes, compiled functions, every dtype.
TESTS = (
    "tests/integration/test_neutrality.py",
    "tests/integration/test_compiled_twins.py",
    "tests/integration/test_gradients.py",
    "tests/integration/test_compare.py",
    "tests/integration/test_guard.py",
    "tests/unit/fingerprint/test_statistics.py",
    "tests/unit/fingerprint/test_torch_form.py",
)
TOOLS = ("pytest", "pytest-timeout", "hypothesis")
MORE_TOOLS = ("openpyxl", "PyYAML", "safetensors", "gguf")
# torch 2.2 was built for the first version of numpy's interface.
OLD_NUMPY = ("2.2",)
_FORMS = """
import json, sys
from numscope.fingerprint import native as fingerprint
forms = {"fingerprint": "C" if fingerprint.load() else "numpy"}
try:
    import torch
except ImportError:
    pass
else:
    from numscope.capture.torch import native
    forms |= {"capture": "C++" if native.load() else "Python", "torch": torch.__version__}
print(json.dumps(forms | {"python": sys.version.split()[0]}))
"""


@dataclass
class Cell:
    """One pair of versions, and what came of it."""

    python: str
    torch: str
    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()
    lacks: str = ""  # why it could not be had
    python_version: str = ""
    torch_version: str = ""
    capture: str = ""  # the form of the functions that capture calls
    seconds: int = 0
    date: str = ""

    @property
    def name(self) -> str:
        return f"{self.python}-{self.torch}"


def cells() -> list[Cell]:
    """Return all cells, those of one torch together: they share a download."""
    return [Cell(python, torch) for torch in (WITHOUT, *TORCHES) for python in PYTHONS]


def chosen(names: list[str], part: bool) -> list[Cell]:
    if part:
        return [cell for cell in cells() if (cell.python, cell.torch) in PART]
    fits = [cell for cell in cells() if any(_is_named(cell, name) for name in names)]
    return fits if names else cells()


def _is_named(cell: Cell, name: str) -> bool:
    python, dash, torch = name.partition("-")
    return python in ("", cell.python) and (torch == cell.torch if dash else True)


def needed(path: Path) -> set[str]:
    """Return the packages that a file of tests imports: itself, by what it imports of the tests, or by its conftest."""
    seen, waiting, found = set[Path](), [path, path.with_name("conftest.py")], set[str]()
    while waiting:
        file = waiting.pop()
        if file in seen or not file.exists() or file == ROOT / "tests" / "conftest.py":
            continue
        seen.add(file)
        for name in imported(file):
            if name.startswith("tests."):
                waiting.append(ROOT / Path(*name.split(".")).with_suffix(".py"))
            else:
                found.add(name.split(".")[0])
    return found - {"numscope", "tomllib", "tomli", "tests"}


@lru_cache
def imported(file: Path) -> list[str]:
    """Return the modules that a file imports, also inside its functions."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    plain = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    return plain + [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]


def tests_of(cell: Cell, python: Path) -> list[str]:
    """Return the files of tests for a cell: those for which it has all packages."""
    folders = ("store", "compare", "report", "core", "weights", "nonfinite", "commands")
    files = [ROOT / name for name in TESTS]
    if not cell.torch:
        files = [file for folder in folders for file in sorted((ROOT / "tests/unit" / folder).rglob("test_*.py"))]
    packages = sorted(set().union(*map(needed, files)))
    say = "import importlib.util as u, sys; print(*(name for name in sys.argv[1:] if u.find_spec(name)))"
    answer = subprocess.run([python, "-c", say, *packages], capture_output=True, text=True, check=True)
    has = set(answer.stdout.split())
    return [str(file.relative_to(ROOT)) for file in files if needed(file) <= has]


@lru_cache
def interpreters() -> dict[str, Path]:
    """Return the interpreters of this machine: on the path, in MATRIX_PYTHONS (folders), and pyenv's."""
    folders = os.environ.get("MATRIX_PYTHONS", "").split(os.pathsep) + os.environ["PATH"].split(os.pathsep)
    folders += sorted(map(str, Path.home().glob(".pyenv/versions/*/bin")), reverse=True)
    found: dict[str, Path] = {}
    for python in PYTHONS:
        for file in (Path(folder, f"python{python}") for folder in folders if folder):
            say = (
                "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
            )
            if file.exists():  # pyenv's own `python3.12` may be there and not work
                said = subprocess.run([file, "-c", say], capture_output=True, text=True).stdout.split()
                if said == [*python.rstrip("t").split("."), str(int(python.endswith("t")))]:
                    found[python] = file.resolve()
                    break
    return found


class Failed(Exception):
    """A cell could not be made."""


def uv(*words: str, cell: Cell) -> None:
    """Run uv, with a cache that all cells of one torch share."""
    environment = {**os.environ, "UV_CACHE_DIR": str(PLACE / f"cache-{cell.torch}"), "UV_LINK_MODE": "hardlink"}
    done = subprocess.run([sys.executable, "-m", "uv", "-q", *words], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise Failed(" ".join(done.stderr.split())[:300])


def make(cell: Cell, wheel: Path, cpu: bool) -> Path:
    """Make the environment of a cell; return its interpreter."""
    folder = PLACE / cell.name
    here = interpreters().get(cell.python)
    try:
        wanted_python = str(here) if here else cell.python.replace("t", "+freethreaded")
        uv("venv", "--clear", "--python", wanted_python, str(folder), cell=cell)
    except Failed as error:
        raise Failed(f"no Python {cell.python}: {error}") from error
    python = folder / "bin" / "python"
    wanted = [str(wheel), *TOOLS]
    if cell.torch:
        wanted.append(f"torch=={TORCHES[cell.torch][0]}")
    wanted += ["numpy<2"] if cell.torch in OLD_NUMPY else []
    index = ["--torch-backend", "cpu"] if cpu else []
    install = ["pip", "install", "--python", str(python), "--only-binary", ":all:", *index]
    uv(*install, *wanted, cell=cell)
    for tool in MORE_TOOLS:  # where they are not there, the tests that need them are left out
        with suppress(Failed):
            uv(*install, tool, *(["numpy<2"] if cell.torch in OLD_NUMPY else []), cell=cell)
    return python


def run(cell: Cell, wheel: Path, cpu: bool) -> None:
    """Make a cell's environment, run its tests, and write into the cell what came out."""
    began = time.monotonic()
    cell.date = time.strftime("%Y-%m-%d")
    if cell.torch and cell.python not in TORCHES[cell.torch][1]:
        cell.lacks = f"torch {TORCHES[cell.torch][0]} has no wheel for Python {cell.python}"
        return
    try:
        python = make(cell, wheel, cpu)
    except Failed as error:
        cell.lacks = str(error).replace(str(ROOT), "")
        return
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    forms = subprocess.run([python, "-c", _FORMS], env=environment, cwd=PLACE, capture_output=True, text=True)
    if forms.returncode:
        cell.failed = (forms.stderr.strip().splitlines()[-1],)
        return
    said = json.loads(forms.stdout.splitlines()[-1])
    cell.python_version, cell.torch_version = said["python"], said.get("torch", "")
    cell.capture = said.get("capture", "")
    with (PLACE / f"{cell.name}.log").open("w") as log:
        pytest(cell, python, environment, log, tests_of(cell, python))
        if not cell.torch:  # the wheel's own command, and runs that a Python with torch has made
            program = {"MATRIX_PROGRAM": str(python.with_name("numscope"))}
            pytest(cell, sys.executable, {**environment, **program}, log, ["tests/integration/test_wheel.py"])
    cell.seconds = int(time.monotonic() - began)


def pytest(cell: Cell, python: Path | str, environment: dict[str, str], log: IO[str], tests: Sequence[str]) -> None:
    """Run tests, and add to the cell what came out."""
    results = PLACE / f"{cell.name}.xml"
    results.unlink(missing_ok=True)
    # Others' warnings, which differ from version to version, are none of ours.
    options = ["-o", "filterwarnings=", "-q", "--timeout=600", f"--junitxml={results}"]
    # Not in this folder: tests that run pytest themselves would find its settings.
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-m", "pytest", *options, f"--basetemp={folder}/tmp", *tests]
        subprocess.run(command, env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    read_results(cell, results)


def read_results(cell: Cell, path: Path) -> None:
    if not path.exists():
        cell.failed += ("pytest did not end",)
        return
    failed = list(cell.failed)
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        outcome = {child.tag for child in case}
        if outcome & {"failure", "error"}:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif "skipped" in outcome:
            cell.skipped += 1
        else:
            cell.passed += 1
    cell.failed = tuple(failed)


def build() -> Path:
    PLACE.mkdir(exist_ok=True)
    for old in PLACE.glob("*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(PLACE)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = PLACE.glob("*.whl")
    return wheel


def remembered() -> dict[str, Cell]:
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    return {cell.name: cell for cell in (Cell(**{**one, "failed": tuple(one["failed"])}) for one in found)}


def remember(cell: Cell) -> None:
    known = {**remembered(), cell.name: cell}
    order = [one.name for one in cells()]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(known[name]) for name in order if name in known], indent=1) + "\n")


def told(cell: Cell | None) -> str:
    """Return what the table says about a cell."""
    if cell is None:
        return "not run"
    if cell.lacks:
        return "no wheel" if "no wheel" in cell.lacks else "not to be had"
    if cell.failed:
        return f"{len(cell.failed)} of {cell.passed + len(cell.failed)} fail"
    return f"{cell.passed}" + (f", {cell.capture}" if cell.capture else "")


def table(known: dict[str, Cell]) -> str:
    heads = ["Python", "no torch", *(TORCHES[torch][0] for torch in TORCHES)]
    lines = [heads, ["---"] * len(heads)]
    for python in PYTHONS:
        lines.append([python, *(_entry(Cell(python, torch), known) for torch in (WITHOUT, *TORCHES))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _entry(cell: Cell, known: dict[str, Cell]) -> str:
    if cell.torch and cell.python not in TORCHES[cell.torch][1]:
        return "no wheel"
    if (cell.python, cell.torch) == MAKE_TEST:
        return "all, C++"
    return told(known.get(cell.name))


def write_table() -> None:
    known = remembered()
    text = PAGE.read_text()
    dates = sorted({cell.date for cell in known.values()})
    marked = f"<!-- table -->\n{table(known)}\n\nRun on {dates[-1]}.\n<!-- end -->"
    PAGE.write_text(re.sub(r"<!-- table -->.*?<!-- end -->", marked, text, flags=re.DOTALL))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CELL")
    parser.add_argument("--part", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    args = parser.parse_args()
    if args.table:
        write_table()
        return 0
    wheel = build()
    bad = 0
    wanted = chosen(args.names, args.part)
    for number, cell in enumerate(wanted):
        run(cell, wheel, args.cpu)
        bad += bool(cell.failed)
        print(f"Python {cell.python}, torch {cell.torch or 'none'}: {cell.lacks or told(cell)} ({cell.seconds} s)")
        for one in cell.failed:
            print(f"    {one}")
        sys.stdout.flush()
        if not args.part:
            remember(cell)
        if not args.keep:
            shutil.rmtree(PLACE / cell.name, ignore_errors=True)
            if all(later.torch != cell.torch for later in wanted[number + 1 :]):
                shutil.rmtree(PLACE / f"cache-{cell.torch}", ignore_errors=True)
    return 1 if bad or all(cell.lacks for cell in wanted) else 0


if __name__ == "__main__":
    sys.exit(main())
