"""Gathers the pages of the repository into build/pages, as mkdocs wants them, and builds the site: `make docs`.

A page's links lead where they lead in the repository: to pages, to folders with a README, to files of the source. Those to
source files become plain text, as the site does not have them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def gather() -> list[str]:
    """Copy every page and picture; return the pages, relative to the folder of the pages."""
    shutil.rmtree(PAGES, ignore_errors=True)
    sources = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    known = {path.resolve() for path in sources}
    for path in sources:
        target = place(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text()
        if path.name == "SKILL.md":
            text = text.split("---", 2)[2]  # without what agents read first
        target.write_text(LINK.sub(partial(led, page=path, known=known), text))
    shutil.copytree(ROOT / "docs" / "images", PAGES / "docs" / "images", ignore=shutil.ignore_patterns("*.py"))
    return sorted(str(place(path).relative_to(PAGES)) for path in sources)


def place(path: Path) -> Path:
    """Return where a page is put; a README is its folder's index."""
    relative = path.relative_to(ROOT)
    return PAGES / (relative.with_name("index.md") if relative.name == "README.md" else relative)


def led(link: re.Match[str], page: Path, known: set[Path]) -> str:
    """Return a link as the site has it."""
    text, to = link.groups()
    path, _, anchor = to.partition("#")
    if "://" in to or not path:
        return link.group()
    target = (page.parent / path).resolve()
    target = target / "README.md" if target.is_dir() else target
    if target not in known:
        return text
    relative = os.path.relpath(place(target), place(page).parent)
    return f"[{text}]({relative}{'#' + anchor if anchor else ''})"


def main() -> int:
    """Gather and build."""
    gather()
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--config-file",
        str(ROOT / "mkdocs.yml"),
    ]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
