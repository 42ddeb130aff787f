"""The user's cache of runs that lie elsewhere: an entry per address, with locks, an upper size, and a list.

    $XDG_CACHE_HOME/numscope/remote/
      5f1c…/            one per endpoint, bucket and key
        origin          the address; outside the copy, so that no object of the bucket can replace it
        writer.lock     held while files are copied: one process at a time
        readers.lock    held, shared, by each process that has opened the run: what is read is not evicted
        etags/          the tags that an object store gave the files
        partial/        files that are being copied: each is moved into the copy when it is complete
        run/NAME/       the copy

Entries are evicted whole, the longest unused first, when the cache grows beyond `most_bytes()`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from urllib.parse import urlsplit, urlunsplit

from numscope.core.errors import SettingsError
from numscope.core.settings import bytes_of

VARIABLE = "NUMSCOPE_CACHE_BYTES"
_SHARE = 10  # the cache may fill a tenth of its file system, as systemd lets its journal do

_guard = Lock()
_copying: dict[Path, Lock] = {}  # threads of this process, by entry
_reading: dict[Path, int] = {}  # descriptors of readers.lock, held until this process ends


@dataclass(frozen=True)
class Entry:
    """One run in the cache."""

    path: Path
    address: str  # without credentials
    bytes: int
    used: float  # when the run was last opened, since the epoch


def root() -> Path:
    """Return the folder of the entries."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "numscope", "remote").absolute()


def most_bytes() -> int:
    """Return how large the cache may grow: NUMSCOPE_CACHE_BYTES (`50GB`), else a tenth of its file system."""
    text = os.environ.get(VARIABLE, "").strip()
    if text:
        size = bytes_of(text)
        if size is None:
            raise SettingsError(f"{VARIABLE}={text!r} is no size: write 50GB, for example")
        return size
    folder = next(parent for parent in (root(), *root().parents) if parent.exists())
    return shutil.disk_usage(folder).total // _SHARE


def entries() -> list[Entry]:
    """Return the entries, the longest unused first."""
    present = []
    for path in sorted(root().iterdir()) if root().is_dir() else []:
        try:
            address, used = without_credentials((path / "origin").read_text(encoding="utf-8")), _used(path)
        except OSError:
            continue  # not ours, or being made at this moment
        present.append(Entry(path, address, _size(path), used))
    return sorted(present, key=lambda entry: entry.used)


def without_credentials(url: str) -> str:
    """Return an address without a user's name and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def begin_reading(entry: Path) -> None:
    """Keep an entry from being evicted while this process lives, and note that it was used now."""
    with _guard:
        if entry not in _reading:
            fd = os.open(entry / "readers.lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
            _lock(fd, shared=True)
            _reading[entry] = fd
    os.utime(entry / "readers.lock")


@contextlib.contextmanager
def only_writer(entry: Path) -> Iterator[None]:
    """Wait until no other thread or process copies files into an entry, and keep them out."""
    with _guard:
        threads = _copying.setdefault(entry, Lock())
    with threads:
        fd = os.open(entry / "writer.lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            _lock(fd, shared=False)
            yield
        finally:
            os.close(fd)


def make_room(coming: int) -> None:
    """Evict entries that no process reads, the longest unused first, until so many more bytes fit."""
    most, present = most_bytes(), entries()
    excess = sum(entry.bytes for entry in present) + coming - most
    for entry in present:
        if excess <= 0:
            return
        if delete(entry):
            excess -= entry.bytes


def delete(entry: Entry) -> bool:
    """Delete an entry; return False where a process reads it."""
    try:
        fd = os.open(entry.path / "readers.lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    except OSError:
        return False
    try:
        if not _lock(fd, shared=False, wait=False):
            return False
        (entry.path / "origin").unlink(missing_ok=True)  # first: what is left of it is then no entry
        shutil.rmtree(entry.path, ignore_errors=True)
        return True
    finally:
        os.close(fd)


def _lock(fd: int, *, shared: bool, wait: bool = True) -> bool:
    """Lock a file; return False where another process has it. Without locks in the file system, nobody is kept out."""
    try:
        import fcntl
    except ImportError:  # Windows: files are renamed into place, so copying twice is only slower
        return True
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _used(path: Path) -> float:
    try:
        return (path / "readers.lock").stat().st_mtime
    except FileNotFoundError:
        return (path / "origin").stat().st_mtime


def _size(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):  # another process has just deleted it
                status = os.lstat(os.path.join(folder, name))
                total += status.st_size
    return total
