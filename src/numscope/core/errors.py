"""Every error numscope raises on purpose.

NumscopeError                 one line: what is wrong, and how to put it right
├── SettingsError             an argument, flag, settings file or map file is not valid
│   └── InvalidSetting        one value is not valid: spelled as the user wrote it, level='foo' or --level foo
├── RunError                  a run cannot be opened, read or written
│   └── NotKeptError          the fingerprint is there, the data is not; says how to keep it
├── CaptureError              capture was used in a way it cannot be (a second one while one is active)
├── MissingExtraError         an optional package is needed; says the pip line
├── ComparisonError           two runs cannot be compared at all
├── NonFiniteError            the guard found where a NaN or infinity is born; `.origin` is the report's dict
└── InexactError              the guard found a call that computes wrongly; `.origin` likewise
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from numscope.core.json_value import Json

_CURES = {
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.EROFS: "choose a place that can be written",
    errno.ENOSPC: "make room, or choose another place",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "name a file, not a directory",
    errno.EEXIST: "choose another place",
}


def cure_of(error: OSError) -> str | None:
    """Return advice on an operating system error, None where there is none."""
    return _CURES.get(error.errno or 0)


def describe(error: OSError) -> str:
    """Return an operating system error as one line, with advice."""
    text = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
    cure = cure_of(error)
    return f"{text}: {cure}" if cure else text


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the path that could not be written where the system's own error does not, as on a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename:
            raise
        reason = os.strerror(error.errno) if error.errno else str(error)
        cure = cure_of(error) or "choose another place"
        raise RunError(f"{os.fspath(path)} could not be written ({reason}): {cure}") from error


class NumscopeError(Exception):
    """One line: what is wrong, and how to put it right."""


class SettingsError(NumscopeError, ValueError):
    """An argument, flag, settings file or map file is not valid."""


class InvalidSetting(SettingsError):
    """One value is not valid; `problem` follows the value in the sentence, which is spelled as Python or as a shell does."""

    def __init__(self, name: str, value: object, problem: str) -> None:
        super().__init__(f"{name}={value!r}{problem}")
        self.name, self.value, self.problem = name, value, problem

    def on_command_line(self) -> str:
        """Return the message in the command line's spelling."""
        return f"--{self.name.replace('_', '-')} {self.value}{self.problem}"


class RunError(NumscopeError):
    """A run cannot be opened, read or written."""


class NotKeptError(RunError, LookupError):
    """The fingerprint of this tensor is in the run, its data is not."""


class CaptureError(NumscopeError, RuntimeError):
    """Capture was used in a way it cannot be."""


class MissingExtraError(NumscopeError, ImportError):
    """An optional package is needed for this."""

    def __init__(self, package: str, job: str) -> None:
        super().__init__(f"{job} needs the package {package}: pip install {package}")


class ComparisonError(NumscopeError):
    """Two runs cannot be compared at all."""


class NonFiniteError(NumscopeError, ArithmeticError):
    """A call with finite inputs gave a non-finite output; `origin` is the report's dict."""

    def __init__(self, message: str, origin: dict[str, Json]) -> None:
        super().__init__(message)
        self.origin = origin


class InexactError(NumscopeError, ArithmeticError):
    """A call is further from exact arithmetic than its kind is measured to be; `origin` is the report's dict."""

    def __init__(self, message: str, origin: dict[str, Json]) -> None:
        super().__init__(message)
        self.origin = origin
