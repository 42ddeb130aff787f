"""Lines of output, in the reader's language: styled where stdout is a terminal, plain text of any width where it is not.

A Chinese character takes two columns, and a line may be broken before each: `columns`, `padded` and `wrapped` know that.
"""

from __future__ import annotations

import re
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence

from numscope.core.language.chinese import language, translated
from numscope.core.untrusted import shown

Part = str | tuple[str, str]  # text, or text and a rich style
Line = str | Sequence[Part]


_WIDE = re.compile(r"[\u2e80-\u9fff\uff00-\uffef]")
_PIECE = re.compile(
    r"[\u2e80-\u9fff\uff00-\uffef][，。；：）、”]*|[^\s\u2e80-\u9fff\uff00-\uffef]+[，。；：）、”]*|\s+"
)


def columns(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def padded(text: str, width: int, right: bool = False) -> str:
    """Return a text with blanks up to a number of columns, before it where it is aligned to the right."""
    blanks = " " * max(0, width - columns(text))
    return blanks + text if right else text + blanks


def wrapped(text: str, width: int, indent: str = "", hang: str | None = None) -> list[str]:
    """Return a text as lines of at most so many columns; `hang` indents all but the first."""
    hang = indent if hang is None else hang
    if not _WIDE.search(text):
        return textwrap.wrap(
            text, width, initial_indent=indent, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False
        )
    lines, line = [], indent
    for piece in _PIECE.findall(text):
        if columns(line + piece.rstrip()) > width and line.strip():
            lines.append(line.rstrip())
            line = hang
        line += piece if line.strip() or not piece.isspace() else ""
    return [*lines, line.rstrip()] if line.strip() else lines


def localised(text: str) -> str:
    """Return a part of a line in the reader's language, as wide as it was where blanks make it a column."""
    if language() == "en":
        return text
    said = translated(text)
    return padded(said.rstrip(), columns(text)) if text.endswith("  ") else said


def text_of(line: Line) -> str:
    """Return a line without its styles."""
    if isinstance(line, str):
        return shown(localised(line))
    return shown("".join(localised(part if isinstance(part, str) else part[0]) for part in line))


def print_lines(lines: Iterable[Line]) -> None:
    """Print lines to stdout; never wrapped, so that columns stay columns."""
    if not sys.stdout.isatty():
        for line in lines:
            sys.stdout.write(text_of(line).rstrip() + "\n")
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in lines:
        parts = [line] if isinstance(line, str) else line
        safe = [
            shown(localised(part)) if isinstance(part, str) else (shown(localised(part[0])), part[1]) for part in parts
        ]
        console.print(Text.assemble(*safe), soft_wrap=True)


def align(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[list[str]]:
    """Pad the cells so that each column has one width; `right` marks the columns that are aligned to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(right))] if rows else []
    return [
        [cell.rjust(width) if to_right else cell.ljust(width) for cell, width, to_right in zip(row, widths, right)]
        for row in rows
    ]


def number(value: float | int | None) -> str:
    """Return a number in five digits, or a dash."""
    if value is None:
        return "-"
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else f"{value:.5g}"


def size(count: float) -> str:
    """Return a number of bytes in a unit for people."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as ranges: 0-3, 7."""
    parts: list[list[int]] = []
    for value in numbers:
        if parts and value == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], value]
        else:
            parts.append([value])
    return ", ".join("-".join(map(str, part)) for part in parts) or "none"
