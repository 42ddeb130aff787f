"""Chinese is complete: every sentence of the answers, errors and help has it, and both readers of it say the same."""

from __future__ import annotations

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
