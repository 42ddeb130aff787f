"""The repository keeps its own rules: dependencies, versions, packages."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()

CORE = {"numpy", "pyarrow", "ml_dtypes", "rich", "tomli", "starlette", "uvicorn", "xlsxwriter"}
EXTRAS = {
    "view": set(),  # in the default install; the names of 0.1.0 still install
    "xlsx": set(),
    "ray": {"ray"},
    "mcp": {"mcp"},
    "compat": {"PyYAML", "matplotlib"},
}


def name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert found, requirement
    return found.group()


def pinned(file: str) -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements" / file).read_text().splitlines()]
    return {name(line): line.split(";")[0].strip() for line in lines if line}


def test_dependencies_are_these_and_no_others() -> None:
    assert {name(requirement) for requirement in PROJECT["dependencies"]} == CORE
    extras = {extra: {name(r) for r in listed} for extra, listed in PROJECT["optional-dependencies"].items()}
    assert extras == EXTRAS


def test_no_framework_is_a_dependency() -> None:
    listed = [*PROJECT["dependencies"], *(r for rs in PROJECT["optional-dependencies"].values() for r in rs)]
    assert not {name(r) for r in listed} & {"torch", "paddlepaddle", "jax", "triton", "transformers"}


def test_every_dependency_says_why_it_is_there() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    start = text.index("dependencies = [")
    end = text.index("[project.scripts]")
    lines = [line for line in text[start:end].splitlines() if re.search(r'"[A-Za-z0-9_]+>=', line)]
    assert len(lines) == len(CORE) + sum(map(len, EXTRAS.values()))
    for line in lines:
        assert re.search(r"#\s\S+", line), f"no reason beside {line.strip()}"


@pytest.mark.parametrize("file", sorted(path.name for path in (ROOT / "requirements").glob("*.txt")))
def test_requirements_are_pinned_to_a_version(file: str) -> None:
    for requirement in pinned(file).values():
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.]*", requirement), requirement


def test_the_tested_versions_cover_the_dependencies() -> None:
    assert set(pinned("core.txt")) == CORE
    assert EXTRAS["ray"] | EXTRAS["mcp"] | EXTRAS["compat"] <= set(pinned("test.txt"))


def test_torch_is_installed_first_and_by_itself() -> None:
    assert pinned("torch.txt") == {"torch": "torch==2.13.0"}
    installs = [line for line in MAKEFILE.splitlines() if re.search(r"-r requirements/", line)]
    for line in installs:
        alone = line.rstrip().endswith("-r requirements/torch.txt")
        assert alone or "-c requirements/torch.txt" in line, f"may choose another torch: {line.strip()}"


def test_no_file_of_the_set_up_names_a_registry() -> None:
    for path in [ROOT / "Makefile", ROOT / ".ci" / "run", *(ROOT / "requirements").glob("*.txt")]:
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links", path.read_text()), path.name


@pytest.mark.parametrize("target", ["demo", "test", "check", "bench", "clean"])
def test_the_makefile_has_the_target(target: str) -> None:
    assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)


def test_entry_points_lead_to_files_of_the_package() -> None:
    groups = [PROJECT.get("scripts", {}), *PROJECT.get("entry-points", {}).values()]
    for points in groups:
        for target in points.values():
            module = ROOT / "src" / Path(*target.split(":")[0].split("."))
            assert module.with_suffix(".py").exists() or (module / "__init__.py").exists(), f"no module {target}"


def test_a_pytest_plugin_that_exists_is_an_entry_point() -> None:
    exists = (ROOT / "src" / "numscope" / "testing" / "plugin.py").exists()
    assert exists == ("pytest11" in PROJECT.get("entry-points", {}))


def test_every_package_says_what_it_holds() -> None:
    for init in (ROOT / "src" / "numscope").rglob("__init__.py"):
        text = init.read_text()
        assert text.startswith('"""'), f"{init.relative_to(ROOT)} has no docstring"


def test_docstrings_open_with_a_noun_or_a_verb() -> None:
    sources = sorted((ROOT / "src").rglob("*.py"))
    assert not [path.name for path in sources if re.search(r'^ *"""What ', path.read_text(), re.MULTILINE)]


def test_folders_hold_about_fifteen_modules() -> None:
    sizes = {folder: len(list(folder.glob("[!_]*.py"))) for folder in (ROOT / "src").rglob("*") if folder.is_dir()}
    assert not {folder.name: size for folder, size in sizes.items() if size > 16}


def test_the_demo_scripts_know_nothing_of_numscope() -> None:
    for script in (ROOT / "src" / "numscope" / "demo").glob("*.py"):
        assert not re.search(r"^\s*(import|from) numscope", script.read_text(), re.MULTILINE), script.name


def test_pages_have_the_figures_of_the_results_and_no_others() -> None:
    from bench.figures import PAGES, with_figures

    for page, figures in PAGES.items():
        text = page.read_text()
        assert with_figures(text, figures()) == text, "python -m bench.figures puts the figures in place"
        assert re.search(r"^\d{4}-\d\d-\d\d, ", figures(), re.MULTILINE), f"{page.name}: its figures are not dated"


def test_results_name_no_machine_and_no_folder() -> None:
    for path in (ROOT / "bench" / "results").glob("*.json"):
        assert not re.search(r'"/|/(root|home|tmp|work)/', path.read_text()), path.name
