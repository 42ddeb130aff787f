"""Chinese for what numscope says: a whole sentence, or its parts where it is put together of several.

A key with places, "{0} is off by {1}", fits every sentence of that form; what stands in its places is looked up as well.
`frontend/src/i18n.ts` does the same with the same files, and a test holds both to the same examples.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Literal, NamedTuple

Language = Literal["en", "zh"]
VARIABLE = "NUMSCOPE_LANG"
FILES = ("viewer.json", "answers.json", "commands.json")
_PLACE = re.compile(r"\{(\d)\}")
_JOINTS = (("; ", "；"), (": ", "："), (", ", "，"))  # at which a sentence of several parts is taken apart


class _Form(NamedTuple):
    """A key with places, as a regular expression."""

    pattern: re.Pattern[str]
    chinese: str
    places: tuple[int, ...]
    joint: bool  # it holds a semicolon itself, so that it is tried before a sentence is taken apart


def language() -> Language:
    """Return the reader's language: of NUMSCOPE_LANG, else of the locale."""
    for name in (VARIABLE, "LC_ALL", "LC_MESSAGES", "LANG"):
        if text := os.environ.get(name, "").lower():
            return "zh" if text.startswith("zh") else "en"
    return "en"


def say(text: str, *values: object) -> str:
    """Return a text of our own in the reader's language, with values at its places."""
    found = catalogue().get(text, text) if language() == "zh" else text
    return _filled(found, {number: str(value) for number, value in enumerate(values)})


def translated(text: str) -> str:
    """Return a sentence in the reader's language; what has no Chinese stays as it is."""
    return chinese(text) if language() == "zh" else text


@cache
def catalogue() -> dict[str, str]:
    """Return all that is known, by the English text."""
    import json  # these two are a third of the time in which an English command starts
    from importlib import resources

    known: dict[str, str] = {}
    for name in FILES:
        known |= json.loads(resources.files(__package__).joinpath(name).read_text("utf-8"))
    return known


@cache
def chinese(text: str) -> str:
    """Return a sentence in Chinese."""
    known, stripped = catalogue(), text.strip()
    if not stripped:
        return text
    if stripped != text:
        return text[: len(text) - len(text.lstrip())] + chinese(stripped) + text[len(text.rstrip()) :]
    if text in known:
        return known[text]
    if (found := _by_form(text, joint=True)) is not None:
        return found
    for english, own in _JOINTS[:1]:
        if english in text:
            return own.join(chinese(part) for part in text.split(english))
    if (found := _by_form(text, joint=False)) is not None:
        return found
    for english, own in _JOINTS[1:]:
        parts = text.split(english)
        if len(parts) > 1 and (said := [chinese(part) for part in parts]) != parts:
            return own.join(said)
    return text


@cache
def _forms() -> tuple[_Form, ...]:
    """Return the keys with places, those that say most first."""
    forms = []
    for english, text in catalogue().items():
        if not _PLACE.search(english):
            continue
        pieces = _PLACE.split(english)
        expression = "".join(re.escape(piece) if i % 2 == 0 else "(.+?)" for i, piece in enumerate(pieces))
        places = tuple(map(int, pieces[1::2]))
        forms.append(
            (sum(map(len, pieces[::2])), _Form(re.compile(expression, re.DOTALL), text, places, "; " in english))
        )
    return tuple(form for _, form in sorted(forms, key=lambda item: -item[0]))


def _by_form(text: str, joint: bool) -> str | None:
    for form in _forms():
        if form.joint == joint and (match := form.pattern.fullmatch(text)):
            return _filled(form.chinese, {place: chinese(value) for place, value in zip(form.places, match.groups())})
    return None


def _filled(text: str, values: dict[int, str]) -> str:
    return _PLACE.sub(lambda place: values.get(int(place[1]), place[0]), text)
