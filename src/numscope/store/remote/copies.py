"""Reads runs at an address: `s3://…`, `gs://…`, `hdfs://…`, by pyarrow's file systems.

A run is read through a copy in the user's cache (see `cache`). Opening the run copies the tables that are new or
have changed; a shard of kept tensors is copied when one of its tensors is asked for.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from numscope.core.errors import RunError
from numscope.store.remote import cache

if TYPE_CHECKING:
    import pyarrow as pa
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
# An object store tells times in whole seconds, by a clock of its own: a file that was written less than this before it
# was copied may have been replaced in the same second. Its tag says so.
_CLOCKS_DIFFER = 300


def is_url(path: str | os.PathLike[str]) -> bool:
    """Tell whether this is an address, not a path on this machine."""
    return isinstance(path, str) and _URL.match(path) is not None


def local_copy(url: str) -> Path:
    """Copy the tables of a run that are new or have changed; return the directory of the copy."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    files, root = file_system(url)
    return refresh(url, files, root, cache.root() / _digest(url, root))


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
    for directory in (entry, copy, entry / "partial", entry / "etags"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    cache.begin_reading(entry)
    with cache.only_writer(entry):
        _write_origin(entry, url)
        _delete_abandoned(entry / "partial")
        for tree in (copy, entry / "etags"):
            wanted = {path for name in listed for path in (tree / name, *(tree / name).parents)}
            for path in sorted(tree.rglob("*"), reverse=True):  # the content of a directory before the directory
                if path not in wanted:
                    path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        old = {name: info for name, info in listed.items() if not _is_current(files, info, entry, copy / name, name)}
        needed = [name for name in old if (copy / name).exists() or not name.endswith(_ON_DEMAND)]
        cache.make_room(sum(listed[name].size or 0 for name in needed))
        for name in needed:
            _copy(files, listed[name], copy / name, entry, name)
    return copy


def is_copy(run: Path) -> bool:
    """Tell whether a run is a copy in the cache, whose shards are copied when they are asked for."""
    return run.absolute().parent.parent.parent == cache.root()


def fetch_shard(run: Path, file: Path) -> None:
    """Copy a shard from the run's address, if `run` is a copy in the cache and the shard is missing."""
    entry = run.absolute().parent.parent
    if file.exists() or not is_copy(run):  # an `origin` beside any other run is not ours
        return
    url = (entry / "origin").read_text(encoding="utf-8")
    files, root = file_system(url)
    path = f"{root}/{file.relative_to(run).as_posix()}"
    name = _name_in_run(url, path, root)
    with cache.only_writer(entry):
        if not file.exists():  # another thread or process may have copied it meanwhile
            info = files.get_file_info(path)
            cache.make_room(info.size or 0)
            _copy(files, info, file, entry, name)


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


def _is_current(files: FileSystem, info: FileInfo, entry: Path, path: Path, name: str) -> bool:
    """Tell whether a file of the copy is the one that is listed."""
    try:
        status = path.stat()
    except OSError:
        return False
    if status.st_size != info.size or status.st_mtime_ns != info.mtime_ns:
        return False
    if info.mtime_ns % 10**9 or status.st_ctime_ns - info.mtime_ns > _CLOCKS_DIFFER * 10**9:
        return True
    try:
        copied = (entry / "etags" / name).read_bytes()
        with files.open_input_stream(info.path) as source:
            return copied == _tag(source)
    except OSError:
        return False


def _tag(stream: pa.NativeFile) -> bytes:
    """Return what an object store calls this content, or b"" where it says nothing."""
    return bytes((stream.metadata() or {}).get("ETag", b"")) if hasattr(stream, "metadata") else b""


def file_system(url: str) -> tuple[FileSystem, str]:
    """Return the file system of an address, and the path there."""
    from pyarrow.fs import FileSystem

    try:
        files, root = FileSystem.from_uri(url)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise RunError(f"{url} is no address that can be read ({_line(error)}): s3, gs, hdfs and file can") from error
    return files, root.rstrip("/")


def _copy(files: FileSystem, info: FileInfo, path: Path, entry: Path, name: str) -> None:
    """Copy one file under a temporary name, and rename it when its size, time and tag are still the same."""
    partial = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(_ATTEMPTS):
            fd, partial = tempfile.mkstemp(dir=entry / "partial")
            with open(fd, "wb") as target, files.open_input_stream(info.path) as source:
                tag = _tag(source)
                while block := source.read(1 << 22):
                    target.write(block)
                copied = target.tell()
            after = files.get_file_info(info.path)
            with files.open_input_stream(info.path) as source:
                same = tag == _tag(source)
            if same and copied == info.size == after.size and info.mtime_ns == after.mtime_ns:
                if info.mtime_ns is not None:
                    os.utime(partial, ns=(info.mtime_ns, info.mtime_ns))
                os.replace(partial, path)
                _write_tag(entry / "etags" / name, tag)
                return
            os.unlink(partial)
            info = after
    except OSError as error:
        if partial:
            Path(partial).unlink(missing_ok=True)
        raise RunError(f"{info.path} could not be copied to {path} ({_line(error)})") from error
    raise RunError(f"{info.path} changes while it is copied ({copied} bytes came, {info.size} are listed): try again")


def _write_tag(path: Path, tag: bytes) -> None:
    if tag:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tag)


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
