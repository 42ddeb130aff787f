"""Pages are short lines of true statements: what scripts make is up to date, links lead somewhere, named files exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
SOURCE = ROOT / "src" / "numscope"
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").rglob("*.md"),
]
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./-]+\.(py|cpp|c|h|md|tsx?|toml)|(?:[\w-]+/)+")
# Words without tables and code. An explanation that outgrows its number is cut, divided, or becomes a reference.
MOST_WORDS, MOST_WORDS_OF_AN_EXPLANATION = 1500, 1200

# Files that pages name though they are a user's, another tool's, or written by numscope.
NOT_OURS = {"train.py", "generate.py", "model.py", "numscope.toml", "test_origin.py", "bench/", "runs/"}
NOT_OURS |= {
    "bisect/test_origin.py",
    "demo/ported.py",
    "ported.py",
    "compare_url.py",
    "main.py",
    "NNNNNN/",
    "utils.py",
    "helpers.py",
}


def prose(text: str) -> str:
    text = re.sub(r"<!-- figures.*?<!-- end of figures -->", "", FENCE.sub("", text), flags=re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("|"))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.timeout(280)
def test_the_page_of_what_is_seen_is_what_capture_sees() -> None:
    script = ROOT / "docs" / "reference" / "make_coverage.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@by_page
def test_lines_are_at_most_120_characters(page: Path) -> None:
    lines = enumerate(page.read_text().splitlines(), 1)
    # A link that is longer can't be broken.
    if page.name == "cli.md":  # a row of a table for each option, as its help is
        return
    long = [f"line {number}: {len(line)}" for number, line in lines if len(re.sub(r"\(?https?://\S+", "", line)) > 120]
    assert not long


@by_page
def test_links_lead_to_pages_and_headings_that_are_there(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@by_page
def test_files_of_ours_that_are_named_exist(page: Path) -> None:
    names = {
        path.name
        for folder in ("src", "tests", "bench", "docs", "frontend/src")
        for path in (ROOT / folder).rglob("*.*")
    }
    missing = []
    for code in CODE.findall(FENCE.sub("", page.read_text())):
        if not FILE.fullmatch(code) or code in NOT_OURS or page.name == "CHANGELOG.md":
            continue
        places = [ROOT / code, ROOT / "src" / code, SOURCE / code, SOURCE / "diagnose" / code, page.parent / code]
        if not any(place.exists() for place in places) and not ("/" not in code and code in names):
            missing.append(code)
    assert not missing


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "explanation").glob("*.md")), ids=lambda page: page.name)
def test_an_explanation_is_read_in_minutes(page: Path) -> None:
    assert len(prose(page.read_text()).split()) <= MOST_WORDS_OF_AN_EXPLANATION


def test_each_promise_of_reliability_has_a_test() -> None:
    text = (ROOT / "docs" / "explanation" / "reliability.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    promises = [row for row in rows if row[-1] != "test" and not row[-1].startswith("---")]
    assert len(promises) > 30
    last = ""
    for fault, promise, test in promises:
        last = last if test == "the same" else test
        assert fault, promise
        assert promise, fault
        named = CODE.findall(last)
        assert named, fault
        for name in named:
            target = name.removeprefix("make ")
            assert f"\n{target}:" in MAKEFILE if name != target else (ROOT / name).exists(), name


def test_architecture_is_one_page() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 120


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        if page.name != "README.md":
            assert f"({page.relative_to(ROOT / 'docs')})" in index


def test_the_reference_is_that_of_the_code() -> None:
    script = ROOT / "docs" / "reference" / "make_reference.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_badges_say_what_the_project_s_files_say() -> None:
    script = ROOT / "docs" / "images" / "make_badges.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_changelog_s_first_version_is_that_of_the_package_and_has_its_date() -> None:
    version = re.search(r'"(.+)"', (SOURCE / "core" / "version.py").read_text().split("__version__")[1])
    assert version is not None
    first = re.search(r"^## \[(.+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first[1] == version[1]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", first[2])


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_is_longer_than_a_sitting(page: Path) -> None:
    assert len(prose(page.read_text()).split()) <= MOST_WORDS, "divide the page, or cut it: 1,500 words are the most"


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "howto").glob("*.md")), ids=lambda page: page.name)
def test_a_how_to_has_its_chinese_with_the_same_blocks(page: Path) -> None:
    chinese = ROOT / "docs" / "zh" / page.name
    assert chinese.exists(), f"write docs/zh/{page.name}, and link it in the last table of docs/README.md"
    own, other = (FENCE.findall(path.read_text()) for path in (page, chinese))
    assert own == other, f"docs/zh/{page.name} has other blocks than docs/howto/{page.name}: copy those that changed"


def test_the_chinese_readme_has_the_commands_of_the_english() -> None:
    def commands(name: str) -> list[str]:
        blocks = "\n".join(FENCE.findall((ROOT / name).read_text()))
        return [line.partition(" #")[0].strip() for line in blocks.splitlines() if line.startswith(("numscope", "pip"))]

    assert commands("README.zh.md") == commands("README.md")
