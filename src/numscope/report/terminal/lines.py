"""Lines of output: styled where stdout is a terminal, plain text of any width where it is not."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from numscope.core.untrusted import shown

Part = str | tuple[str, str]  # text, or text and a rich style
Line = str | Sequence[Part]


def text_of(line: Line) -> str:
    """Return a line without its styles."""
    if isinstance(line, str):
        return shown(line)
    return shown("".join(part if isinstance(part, str) else part[0] for part in line))


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
        safe = [shown(part) if isinstance(part, str) else (shown(part[0]), part[1]) for part in parts]
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
