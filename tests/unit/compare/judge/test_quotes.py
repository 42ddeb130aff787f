"""The docstrings of the tests of judging and loading are sentences of the pages that explain verdicts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDER = Path(__file__).parents[4] / "docs" / "explanation"
PAGES = ("verdicts.md", "rounding.md", "evidence.md", "regions.md", "training.md")


def plain(text: str) -> str:
    """Return a text without Markdown's marks and line breaks."""
    text = re.sub(r"^\s*([-|]|\d+\.)\s", " ", text, flags=re.MULTILINE)
    return " ".join(re.sub(r"[*`]", "", text.replace("|", " ")).split()).casefold()


def quotes() -> Iterator[tuple[str, str]]:
    for path in sorted([*HERE.glob("test_*.py"), *(HERE.parent / "load").glob("test_*.py")]):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                quote = ast.get_docstring(node)
                if quote:
                    yield f"{path.stem}::{node.name}", quote


@pytest.mark.parametrize(("name", "quote"), list(quotes()), ids=lambda value: value if "::" in value else "")
def test_a_quoted_sentence_is_on_a_page(name: str, quote: str) -> None:
    pages = [plain((FOLDER / page).read_text(encoding="utf-8")) for page in PAGES]
    assert any(plain(quote).rstrip(".") in page for page in pages), f"{name}: {quote}"
