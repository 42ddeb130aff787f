"""Draws the README's badges, `badges.svg`, from pyproject.toml and the version: they say what is so, and ask no server.

python docs/images/make_badges.py            writes it
python docs/images/make_badges.py --check    exit status 1 where it is not up to date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PICTURE = HERE / "badges.svg"
_HEIGHT, _GAP, _PADDING, _LETTER = 20, 6, 8, 6.6  # of a letter: the mean of the font at 11 px, and a little more


class Badge(NamedTuple):
    """A fact, and the word that says of what."""

    label: str
    fact: str
    colour: str


def badges() -> list[Badge]:
    """Return the facts as the project's own files have them."""
    project = (ROOT / "pyproject.toml").read_text()
    version = (ROOT / "src" / "numscope" / "core" / "version.py").read_text()

    def found(pattern: str, text: str) -> str:
        match = re.search(pattern, text, re.MULTILINE)
        if match is None:
            raise SystemExit(f"make_badges.py: {pattern} is not found any more: say where it stands now")
        return match[1]

    return [
        Badge("version", found(r'__version__ = "(.+)"', version), "#2f6fb0"),
        Badge("python", found(r'^requires-python = ">=(.+)"', project) + "+", "#2f6fb0"),
        Badge("types", "mypy strict" if re.search(r"^strict = true", project, re.MULTILINE) else "partial", "#4a7a4a"),
        Badge("license", found(r'^license = "(.+)"', project), "#6b6b6b"),
    ]


def drawn() -> str:
    """Return all badges side by side as SVG."""
    parts: list[str] = []
    left = 0.0
    for badge in badges():
        widths = [round(len(text) * _LETTER + 2 * _PADDING) for text in (badge.label, badge.fact)]
        for text, width, colour in zip((badge.label, badge.fact), widths, ("#454545", badge.colour)):
            parts.append(f'<rect x="{left:g}" width="{width}" height="{_HEIGHT}" fill="{colour}"/>')
            parts.append(f'<text x="{left + width / 2:g}" y="14">{text}</text>')
            left += width
        left += _GAP
    words = ", ".join(f"{badge.label} {badge.fact}" for badge in badges())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left - _GAP:g}" height="{_HEIGHT}" role="img" aria-label="{words}">'
        f'<title>{words}</title><g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" '
        f'font-size="11">{"".join(parts)}</g></svg>\n'
    )


if __name__ == "__main__":
    if "--check" in sys.argv:
        current = PICTURE.read_text() if PICTURE.exists() else ""
        sys.exit("badges.svg: python docs/images/make_badges.py draws it anew" if current != drawn() else 0)
    PICTURE.write_text(drawn())
