"""Call stacks, interned: a stack is a number, and the same site costs one dictionary lookup.

A site is keyed by the code objects and instruction offsets from the call up to the enclosing module call, and by that
module call's own site: inside a deep model only a frame or two are walked.
"""

from __future__ import annotations

import linecache
import os
import runpy
import sysconfig
from types import CodeType, FrameType
from typing import Any

from numscope.capture.frameworks import PACKAGES

Frame = dict[str, Any]
_NOT_USERS = {*PACKAGES, "numscope"}
_HERE = -1  # no code has this address

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_RUNPY = ("<frozen runpy>", runpy.__file__)  # how Python gets to the script
# What the names of code begin with that a user typed or sent: `python -c`, a script on stdin, consoles, notebooks, exec.
_TYPED = ("<stdin", "<string", "<console", "<input", "<python-input", "<ipython-input")
_LAUNCHER = os.path.join(sysconfig.get_path("scripts"), "numscope")  # what `numscope run` starts with
_STANDARD = tuple(
    os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib") if sysconfig.get_path(name)
)


class Sites:
    """The distinct stacks of one rank."""

    __slots__ = ("_boundaries", "_codes", "_frame_cache", "_frames", "_ids", "_users", "_written")

    def __init__(self) -> None:
        # From the enclosing call's stack on: address of a frame's code → its instruction → the same of the frame around it
        # …, and at the end the stack's number.
        self._ids: dict[int, dict[int, Any]] = {}
        self._frames: list[list[Frame]] = []
        self._users: list[int | None] = []
        self._written = 0
        self._frame_cache: dict[tuple[int, int], Frame | None] = {}
        self._boundaries: set[int] = set()
        self._codes: dict[int, CodeType] = {}  # those that keys speak of by their address, which is thereby theirs

    def boundary(self, code: CodeType) -> None:
        """Stop walking at frames of this code: what lies outside is known as the enclosing call's site."""
        self._codes[id(code)] = code
        self._boundaries.add(id(code))

    def intern(self, frame: FrameType | None, base: int) -> int:
        """Return the number of the stack that ends in `frame`; `base` is the enclosing call's stack, or -1."""
        start = frame
        boundaries = self._boundaries
        try:
            node = self._ids[base]
            while frame is not None:
                code = id(frame.f_code)  # to hash a code object is to hash all its names and constants
                if code in boundaries and base >= 0:
                    break
                node = node[code][frame.f_lasti]
                frame = frame.f_back
            found: int = node[_HERE]
        except KeyError:
            return self._add(start, base)
        return found

    def _add(self, frame: FrameType | None, base: int) -> int:
        node = self._ids.setdefault(base, {})
        walked: list[tuple[CodeType, int, int]] = []
        while frame is not None:
            code = frame.f_code
            if base >= 0 and id(code) in self._boundaries:
                break
            self._codes[id(code)] = code
            walked.append((code, frame.f_lasti, frame.f_lineno or code.co_firstlineno))
            node = node.setdefault(id(code), {}).setdefault(frame.f_lasti, {})
            frame = frame.f_back
        frames = list(self._frames[base]) if base >= 0 else []
        for code, lasti, line in reversed(walked):
            if described := self._describe(code, lasti, line):
                frames.append(described)
        user = next((index for index in range(len(frames) - 1, -1, -1) if is_user(frames[index]["file"])), None)
        number = len(self._frames)
        self._frames.append(frames)
        self._users.append(user)
        node[_HERE] = number
        return number

    def _describe(self, code: CodeType, lasti: int, line: int) -> Frame | None:
        key = id(code), lasti  # a code has no hash where Dynamo has put a slice among its constants
        if key not in self._frame_cache:
            file = code.co_filename
            hidden = file.startswith((_OWN, *_RUNPY, _LAUNCHER)) or file.endswith(os.path.join("torch", "overrides.py"))
            text = linecache.getline(file, line).strip()
            frame = {"file": file, "line": line, "function": code.co_name, "code": text}
            self._frame_cache[key] = None if hidden else frame
        return self._frame_cache[key]

    def frames(self, number: int) -> list[Frame]:
        """Return the frames of a stack, outermost first."""
        return self._frames[number]

    def all_frames(self) -> list[Frame]:
        """Return the distinct frames of all stacks."""
        return [frame for frame in self._frame_cache.values() if frame is not None]

    def source(self, number: int) -> Frame | None:
        """Return the innermost frame of the user's own code in a stack, or None."""
        user = self._users[number] if number >= 0 else None
        return self._frames[number][user] if user is not None else None

    def take_new(self) -> dict[str, list[Any]]:
        """Return the stacks added since the last call, as the columns of the stacks table."""
        first, self._written = self._written, len(self._users)  # to which another thread may be adding: users last
        return {
            "stack": list(range(first, self._written)),
            "frames": self._frames[first : self._written],
            "user": self._users[first : self._written],
        }


def is_user(file: str) -> bool:
    """Tell whether a file is the user's own: not the framework's, not the standard library's, not ours."""
    if file.startswith(("<", _OWN)):
        return file.startswith(_TYPED)
    parts = file.replace("\\", "/").split("/")
    if "site-packages" in parts or "dist-packages" in parts:
        place = parts.index("site-packages") if "site-packages" in parts else parts.index("dist-packages")
        return parts[place + 1] not in _NOT_USERS
    return not file.startswith(_STANDARD)
