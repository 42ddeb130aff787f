"""The source text of the definitions that a run's calls stand in, and of the classes of its modules and optimizers.

Only whole definitions at the top of a file are kept, and no line that gives a secret a value.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sys
from collections.abc import Iterable
from importlib import metadata

from numscope.capture.sites import Frame, is_user
from numscope.core.job_files.program import SourceText
from numscope.store.manifest import is_secret

_LONGEST = 4_000_000  # characters of a file
_MOST = 8_000_000  # characters that are kept
_ASSIGNS = re.compile(r"([A-Za-z_]\w*)[\"']?\s*[=:]\s*[\"']")


class _Wanted:
    """The lines and classes of one file whose definitions are kept."""

    def __init__(self) -> None:
        self.lines: set[int] = set()
        self.names: set[str] = set()


def source_texts(frames: Iterable[Frame], classes: Iterable[type]) -> list[SourceText]:
    """Return the definitions around the frames' lines, and those of the classes and what they extend."""
    wanted: dict[str, _Wanted] = {}
    for frame in frames:
        if is_user(frame["file"]) and frame["line"]:
            wanted.setdefault(frame["file"], _Wanted()).lines.add(frame["line"])
    for one in {base for kind in classes for base in kind.__mro__}:
        file = _file_of(one)
        if file is not None and is_user(file):
            wanted.setdefault(file, _Wanted()).names.add(one.__qualname__.partition(".")[0])
    found: list[SourceText] = []
    size = 0
    for file, what in wanted.items():
        for text in _definitions(file, what):
            size += len(text["text"])
            if size > _MOST:
                return found
            found.append(text)
    return found


def packages(classes: Iterable[type]) -> dict[str, str]:
    """Return the versions of the packages that classes are of."""
    names = {kind.__module__.partition(".")[0] for kind in classes}
    versions = {name: getattr(sys.modules.get(name), "__version__", None) or _installed(name) for name in sorted(names)}
    return {name: version for name, version in versions.items() if isinstance(version, str)}


def _installed(name: str) -> str | None:
    """Return the version that a package of this name was installed as."""
    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):
        return None


def _file_of(kind: type) -> str | None:
    try:
        return inspect.getsourcefile(kind)
    except (TypeError, OSError):
        return None


def _definitions(file: str, wanted: _Wanted) -> Iterable[SourceText]:
    """Yield the statements at the top of a file that hold a wanted line or define a wanted class, and plain constants."""
    lines = linecache.getlines(file)
    if sum(map(len, lines)) > _LONGEST:
        return
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return
    for node in tree.body:
        decorators = getattr(node, "decorator_list", [])
        first, last = min([node.lineno, *(one.lineno for one in decorators)]), node.end_lineno or node.lineno
        holds = any(first <= line <= last for line in wanted.lines)
        if holds or getattr(node, "name", None) in wanted.names or _is_constant(node):
            yield {"file": file, "line": first, "text": "".join(map(_told, lines[first - 1 : last]))}


def _is_constant(node: ast.stmt) -> bool:
    """Return whether a statement names a number: `EPS = 1e-6`."""
    is_number = isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    return is_number and isinstance(node.value.value, (int, float))  # type: ignore[attr-defined]


def _told(line: str) -> str:
    """Return a line of source, or an empty one where it gives a secret a value."""
    return "\n" if any(is_secret(name) for name in _ASSIGNS.findall(line)) else line
