"""Checks on names, sizes and files that a stranger may have made, before they are shown, allocated or used."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from numscope.core.errors import NumscopeError, RunError

# Control characters, which a terminal obeys, but for the tab and the end of a line; and those that turn the direction of
# text, so that it reads as something else.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


_COLOUR = re.compile(r"(\x1b\[(?:[0-2]|3[0-7](?:;1)?)m)")  # as the answers have them, none of which hides text


def shown(text: str, coloured: bool = False) -> str:
    """Return text with its control characters written out, as Python writes them: \\x1b; `coloured` leaves colours."""
    if coloured:
        return "".join(part if _COLOUR.fullmatch(part) else shown(part) for part in _COLOUR.split(text))
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def check_size(size: int, what: str | os.PathLike[str]) -> None:
    """Raise where so many bytes do not fit into this machine's memory: a damaged or hostile file says any number."""
    if size > _memory():
        raise RunError(
            f"{what} says that it holds {size / 1e9:.0f} GB, more than this machine's memory: it is not read"
        )


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file where reading it fails: a parser raises what it likes where a file is damaged, or not what it says."""
    try:
        yield
    except NumscopeError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            raise  # says itself what is wrong
        said = shown(" ".join(str(error).split()))[:200]
        text = f"{type(error).__name__}: {said}" if said else type(error).__name__
        raise RunError(f"{path} cannot be read ({text}): it is damaged, or not what its name says") from error


def _memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system says
        return 1 << 40


def is_own(path: str | os.PathLike[str]) -> bool:
    """Tell whether a file is a plain one that only this user or the system's administrator can have written."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    mine = not hasattr(os, "getuid") or status.st_uid in (os.getuid(), 0)
    return mine and stat.S_ISREG(status.st_mode) and not status.st_mode & stat.S_IWOTH


def check_folder(folder: Path, run: Path) -> None:
    """Raise where a folder of a run holds a link out of the run, a pipe or a device."""
    inside = os.path.realpath(run)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink() and os.path.commonpath([inside, os.path.realpath(entry.path)]) != inside:
                raise RunError(f"{entry.path} is a link that leads out of the run: copy what it names to its place")
            if not (entry.is_file() or entry.is_dir() or entry.is_symlink()):
                raise RunError(
                    f"{entry.path} is a pipe or a device, and no file of a run: read only runs that you trust"
                )
