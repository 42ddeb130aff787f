"""Call stacks, interned: a stack is a number, and the same site costs one dictionary lookup.

A site is keyed by the code objects and instruction offsets from the call up to the enclosing module call, and by that
module call's own site: inside a deep model only a frame or two are walked.
"""

from __future__ import annotations

import linecache
import os
import runpy
import sys
import sysconfig
from types import CodeType, FrameType
from typing import Any

Frame = dict[str, Any]

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_RUNPY = ("<frozen runpy>", runpy.__file__)  # how Python gets to the script
_STANDARD = tuple(
    os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib") if sysconfig.get_path(name)
)
_DEEP = (
    200  # frames; a stack of more is not looked for as a tuple in a tuple in a tuple …: Python would not compare them
)


class Sites:
    """The distinct stacks of one rank."""

    def __init__(self) -> None:
        self._ids: dict[Any, int] = {}
        self._frames: list[list[Frame]] = []
        self._users: list[int | None] = []
        self._written = 0
        self._frame_cache: dict[tuple[CodeType, int], Frame | None] = {}
        self._boundaries: set[int] = set()
        self._codes: dict[int, CodeType] = {}  # those that keys speak of by their address, which is thereby theirs

    def boundary(self, code: CodeType) -> None:
        """Stop walking at frames of this code: what lies outside is known as the enclosing call's site."""
        self._codes[id(code)] = code
        self._boundaries.add(id(code))

    def intern(self, frame: FrameType | None, base: int) -> int:
        """Return the number of the stack that ends in `frame`; `base` is the enclosing call's stack, or -1."""
        start = frame
        boundaries = self._boundaries if base >= 0 else ()
        key: Any = base
        # Around it, of each frame, the code's address (to hash a code is to hash all that is in it) and the place.
        while frame is not None:
            code = id(frame.f_code)
            if code in boundaries:
                break
            key = (key, code, frame.f_lasti)
            frame = frame.f_back
        found = self._ids.get(key)
        return found if found is not None else self._add(key, base, start)

    def _add(self, key: Any, base: int, start: FrameType | None) -> int:
        parts: list[tuple[int, int]] = []  # of the outermost frame first
        rest = key
        while rest != base:
            rest, code, place = rest
            parts.append((code, place))
        if len(parts) > _DEEP:
            key = (base, tuple(parts))
            if key in self._ids:
                return self._ids[key]
        for _ in parts:
            assert start is not None
            self._codes[id(start.f_code)] = start.f_code
            start = start.f_back
        frames = list(self._frames[base]) if base >= 0 else []
        for code, place in parts:
            if frame := self._describe(self._codes[code], place):
                frames.append(frame)
        user = next((index for index in range(len(frames) - 1, -1, -1) if is_user(frames[index]["file"])), None)
        number = len(self._frames)
        self._frames.append(frames)
        self._users.append(user)
        self._ids[key] = number
        return number

    def _describe(self, code: CodeType, lasti: int) -> Frame | None:
        if (code, lasti) not in self._frame_cache:
            file = code.co_filename
            line = _line(code, lasti)
            hidden = file.startswith((_OWN, *_RUNPY)) or file.endswith(os.path.join("torch", "overrides.py"))
            text = linecache.getline(file, line).strip()
            frame = {"file": file, "line": line, "function": code.co_name, "code": text}
            self._frame_cache[code, lasti] = None if hidden else frame
        return self._frame_cache[code, lasti]

    def frames(self, number: int) -> list[Frame]:
        """Return the frames of a stack, outermost first."""
        return self._frames[number]

    def source(self, number: int) -> Frame | None:
        """Return the innermost frame of the user's own code in a stack, or None."""
        user = self._users[number] if number >= 0 else None
        return self._frames[number][user] if user is not None else None

    def take_new(self) -> dict[str, list[Any]]:
        """Return the stacks added since the last call, as the columns of the stacks table."""
        first, self._written = self._written, len(self._frames)
        return {
            "stack": list(range(first, self._written)),
            "frames": self._frames[first : self._written],
            "user": self._users[first : self._written],
        }


def _line(code: CodeType, lasti: int) -> int:
    if sys.version_info >= (3, 11):
        for start, stop, line in code.co_lines():
            if start <= lasti < stop and line is not None:
                return line
        return code.co_firstlineno
    line_number = code.co_firstlineno
    for start, stop, line in code.co_lines():
        if start <= lasti < stop and line is not None:
            line_number = line
    return line_number


def is_user(file: str) -> bool:
    """Tell whether a file is the user's own: not the framework's, not the standard library's, not ours."""
    if file.startswith(("<", _OWN)):
        return False
    parts = file.replace("\\", "/").split("/")
    if "site-packages" in parts or "dist-packages" in parts:
        place = parts.index("site-packages") if "site-packages" in parts else parts.index("dist-packages")
        return parts[place + 1] not in {"torch", "paddle", "jax", "jaxlib", "torch_npu", "numscope"}
    return not file.startswith(_STANDARD)
