"""Reads runs at an address: `s3://…`, `gs://…`, `hdfs://…`, by pyarrow's file systems.

A run is read through a copy in the user's cache. Opening the run copies the tables that are new or have changed; a shard
of kept tensors is copied when one of its tensors is asked for.

    $XDG_CACHE_HOME/numscope/remote/
      5f1c…/            one per endpoint, bucket and key
        origin          the address; outside the copy, so that no object of the bucket can replace it
        partial/        files that are being copied: each is moved into the copy when it is complete
        run/NAME/       the copy
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from numscope.core.errors import RunError

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

_URL = re.compile(r"[a-z][a-z0-9+]+://", re.IGNORECASE)
_ON_DEMAND = ".safetensors"
_OUTSIDE = re.compile(r"(^|/)\.{0,2}(/|$)|\\|^[a-z]:|[\x00-\x1f]", re.IGNORECASE)
# Where these variables differ, the same address may mean another server.
_ENDPOINT_VARIABLES = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_CONFIG_FILE"),
    *("CLOUD_STORAGE_EMULATOR_ENDPOINT", "STORAGE_EMULATOR_HOST", "HADOOP_CONF_DIR"),
)
_ATTEMPTS = 3  # at a file that changes while it is copied
_ABANDONED = 24 * 3600  # seconds after which a partial file is one that a killed process left
_writers: dict[Path, Lock] = {}


def is_url(path: str | os.PathLike[str]) -> bool:
    """Tell whether this is an address, not a path on this machine."""
    return isinstance(path, str) and _URL.match(path) is not None


def local_copy(url: str) -> Path:
    """Copy the tables of a run that are new or have changed; return the directory of the copy."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    files, root = _file_system(url)
    return refresh(url, files, root, _cache() / _digest(url, root))


def refresh(url: str, files: FileSystem, root: str, entry: Path) -> Path:
    """Update the copy in a cache entry, except for shards that it does not have; return its directory."""
    from pyarrow.fs import FileSelector, FileType

    try:
        infos = files.get_file_info(FileSelector(root, recursive=True))
    except OSError as error:
        raise RunError(f"{url} cannot be read ({_line(error)}): check the address and your credentials") from error
    listed = {_name_in_run(url, info.path, root): info for info in infos if info.type == FileType.File}
    if "manifest.json" not in listed:
        raise RunError(f"{url} has no manifest.json: give the address of a run, the directory that capture wrote")
    copy = entry / "run" / _label(root)
    for directory in (entry, copy, entry / "partial"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write_origin(entry, url)
    _delete_abandoned(entry / "partial")
    wanted = {path for name in listed for path in (copy / name, *(copy / name).parents)}
    for path in sorted(copy.rglob("*"), reverse=True):  # the content of a directory before the directory
        if path not in wanted:
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    for name, info in listed.items():
        path = copy / name
        if not _is_current(path, info) and (path.exists() or not name.endswith(_ON_DEMAND)):
            _copy(files, info, path, entry)
    return copy


def fetch_shard(run: Path, file: Path) -> None:
    """Copy a shard from the run's address, if `run` is a copy in the cache and the shard is missing."""
    entry = run.absolute().parent.parent
    if file.exists() or entry.parent != _cache():  # an `origin` beside any other run is not ours
        return
    url = (entry / "origin").read_text(encoding="utf-8")
    files, root = _file_system(url)
    path = f"{root}/{file.relative_to(run).as_posix()}"
    _name_in_run(url, path, root)
    with _writers.setdefault(file, Lock()):
        if not file.exists():  # another thread may have copied it meanwhile
            _copy(files, files.get_file_info(path), file, entry)


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "numscope", "remote").absolute()


def _digest(url: str, root: str) -> str:
    """Return the name of a cache entry: one per endpoint, bucket and key, independent of credentials."""
    parts = urlsplit(url)
    _, _, host = parts.netloc.rpartition("@")  # without the credentials
    endpoint = [parts.scheme, host, parts.query]
    variables = [os.environ.get(name, "") for name in _ENDPOINT_VARIABLES]
    return hashlib.sha256("\0".join([*endpoint, root, *variables]).encode()).hexdigest()[:32]


def _label(root: str) -> str:
    """Return the last part of a key as the name of a directory."""
    _, _, name = root.rpartition("/")
    return re.sub(r"[^\w-]+", "-", name)[:80].strip("-") or "run"


def _name_in_run(url: str, path: str, root: str) -> str:
    """Return an object's path relative to its run; refuse one that would lie elsewhere on this machine."""
    prefix = f"{root}/" if root else ""
    name = path[len(prefix) :]
    if not path.startswith(prefix) or _OUTSIDE.search(name):
        raise RunError(
            f"{url} holds an object named {path!r}, which cannot be a file of a run: read only runs that you trust"
        )
    return name


def _write_origin(entry: Path, url: str) -> None:
    """Write the address into a file that only the user can read: it may hold credentials."""
    fd, partial = tempfile.mkstemp(dir=entry / "partial")
    with open(fd, "w", encoding="utf-8") as file:
        file.write(url)
    os.replace(partial, entry / "origin")


def _delete_abandoned(partial: Path) -> None:
    for path in partial.iterdir():
        try:
            if path.stat().st_mtime < time.time() - _ABANDONED:
                path.unlink()
        except FileNotFoundError:
            pass  # its writer has just moved it


def _is_current(path: Path, info: FileInfo) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return bool(status.st_size == info.size and status.st_mtime_ns == info.mtime_ns)


def _file_system(url: str) -> tuple[FileSystem, str]:
    from pyarrow.fs import FileSystem

    try:
        files, root = FileSystem.from_uri(url)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise RunError(f"{url} is no address that can be read ({_line(error)}): s3, gs, hdfs and file can") from error
    return files, root.rstrip("/")


def _copy(files: FileSystem, info: FileInfo, path: Path, entry: Path) -> None:
    """Copy one file under a temporary name, and rename it when its size and time are those that were listed."""
    partial = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(_ATTEMPTS):
            fd, partial = tempfile.mkstemp(dir=entry / "partial")
            with open(fd, "wb") as target, files.open_input_stream(info.path) as source:
                while block := source.read(1 << 22):
                    target.write(block)
                copied = target.tell()
            after = files.get_file_info(info.path)
            if copied == info.size == after.size and info.mtime_ns == after.mtime_ns:
                if info.mtime_ns is not None:
                    os.utime(partial, ns=(info.mtime_ns, info.mtime_ns))
                os.replace(partial, path)
                return
            os.unlink(partial)
            info = after
    except OSError as error:
        if partial:
            Path(partial).unlink(missing_ok=True)
        raise RunError(f"{info.path} could not be copied to {path} ({_line(error)})") from error
    raise RunError(f"{info.path} changes while it is copied ({copied} bytes came, {info.size} are listed): try again")


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
