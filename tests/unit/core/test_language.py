"""Chinese is complete: every sentence of the answers, errors and help has it, and both readers of it say the same."""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import re
from pathlib import Path

import pytest

from numscope.core.language.chinese import FILES, VARIABLE, catalogue, chinese, language, say, translated

HERE = Path(__file__).parent
FOLDER = Path(language.__code__.co_filename).parent


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({VARIABLE: "zh"}, "zh"),
        ({VARIABLE: "en", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, "en"),
        ({}, "en"),
    ],
)
def test_the_language_is_the_variable_s_else_the_locale_s(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (VARIABLE, "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert language() == expected


def test_sentences_read_as_in_the_browser() -> None:
    examples = json.loads((HERE / "language_examples.json").read_text())
    assert {english: chinese(english) for english in examples} == examples


def test_a_reader_of_english_gets_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "en")
    assert translated("inputs identical") == "inputs identical"
    assert say("step {0}, rank {1}", 3, 1) == "step 3, rank 1"
    monkeypatch.setenv(VARIABLE, "zh")
    assert say("step {0}, rank {1}", 3, 1) == "第 3 步，rank 1"


def test_no_text_stands_in_two_files_and_none_is_its_own_chinese() -> None:
    seen: dict[str, str] = {}
    for name in FILES:
        for english, own in json.loads((FOLDER / name).read_text()).items():
            assert seen.setdefault(english, name) == name, f"{english!r} is in {seen[english]} and in {name}"
            assert english == english.strip()
            assert own or english == ".", english


def test_the_chinese_has_only_places_that_the_english_has() -> None:
    for english, own in catalogue().items():
        assert set(re.findall(r"\{\d\}", own)) <= set(re.findall(r"\{\d\}", english)), english


# Where people read English that is written here. Facades of other tools and their formats speak those tools' words; what a
# repro file or a page is made of is no sentence.
ROOT = FOLDER.parents[1]
SPOKEN = [
    *ROOT.glob("*.py"),
    *(
        path
        for folder in ("check", "commands", "compare", "core", "diagnose", "nonfinite", "report", "view", "weights")
        for path in (ROOT / folder).rglob("*.py")
    ),
    *(path for folder in ("store", "store/remote", "store/writing") for path in (ROOT / folder).glob("*.py")),
    *(ROOT / "capture" / name for name in ("session.py", "launch.py", "job.py")),
]
NO_SENTENCES = {
    "compare/align/arguments.py", "compare/load/paddle_words.py", "diagnose/accuracy/devices.py", "diagnose/hypotheses/wording.py",
    "commands/completion.py", "commands/demo.py", "core/notebook.py", "core/untrusted.py", "report/html.py", "view/security.py",
    "diagnose/accuracy/cases.py", "report/xlsx.py", "commands/mcp.py",
}  # fmt: skip
# What is put together at run time, or read by programs: the whole is looked up, its pieces are not.
PIECES = re.compile(
    r"^[\W\d]*$|<|\bbold\b|charset=|filename=|^File \"|^Traceback|__|^numscope |```|^-- |= ?\[|^\w+=|\"inplace|\(\)|^return |^with torch|^ref: |^ns\."
)


def fragments(path: Path) -> list[str]:
    """Return the texts of a module that hold words, with places numbered: those that are no docstrings and no keys."""
    tree = ast.parse(path.read_text())
    skipped = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and body and isinstance(body[0], ast.Expr):
            skipped.add(id(body[0].value))
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(value) for value in node.values}
        if isinstance(node, ast.Assert):
            skipped |= {id(inner) for inner in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            places = iter(range(100))
            found.append(
                "".join(str(v.value) if isinstance(v, ast.Constant) else f"{{{next(places)}}}" for v in node.values)
            )
    return [text.strip(" ;,:").strip() for text in found]


def has_chinese(text: str) -> bool:
    """Tell whether a fragment is looked up, as it is or without the brackets that close around it elsewhere."""
    return any(chinese(one) != one for one in (text, text.strip(" ;,:()…"), text.strip("… "), f"{text}."))


def spoken(text: str) -> bool:
    words = re.findall(r"[A-Za-z]{2,}", re.sub(r"\{\d+\}|`[^`]*`|--[\w-]+", " ", text))
    return len(words) >= 2 and " " in text and "\n" not in text and not PIECES.search(text)


def test_every_sentence_has_its_chinese() -> None:
    lacking = {}
    for path in SPOKEN:
        name = str(path.relative_to(ROOT))
        if name not in NO_SENTENCES:
            lacking |= {text: name for text in fragments(path) if spoken(text) and not has_chinese(text)}
    lines = [f'  "{text}": "…",    ({name})' for text, name in sorted(lacking.items(), key=lambda item: item[1])]
    assert not lines, "add to core/language/answers.json (reports) or commands.json (the rest):\n" + "\n".join(lines)


def test_help_has_its_chinese() -> None:
    from numscope.commands import COMMANDS, available, grammar, module_of

    known, lacking = catalogue(), set()
    for name in available():
        parser = grammar.parser_of(name, importlib.import_module(module_of(name)))
        prose = [one for one in (parser.description or "").split("\n\n") if not one.startswith("  ")]
        paragraphs = [" ".join(one.split()) for one in prose]
        helps = [action.help for action in parser._actions if action.help and action.help != argparse.SUPPRESS]
        lacking |= {text for text in (COMMANDS[name], *paragraphs, *helps) if text and text not in known}
    assert not lacking, "add to core/language/commands.json:\n" + "\n".join(
        f'  "{text}": "…",' for text in sorted(lacking)
    )
