"""A run that lies elsewhere: `s3://…`, `gs://…`, `hdfs://…`, by pyarrow's file systems.

It is read through a copy in $XDG_CACHE_HOME/numscope. Opening the run brings the tables, or what is new of them; a shard
of kept tensors comes when one of its tensors is asked for.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from numscope.core.errors import RunError

ORIGIN = ".origin"  # in a copy: the address it is a copy of
_URL = re.compile(r"[a-z][a-z0-9+]+://", re.IGNORECASE)
_LATER = ".safetensors"


def is_url(path: str | os.PathLike[str]) -> bool:
    """Tell whether this is an address and no path of this machine."""
    return isinstance(path, str) and _URL.match(path) is not None


def local_copy(url: str) -> Path:
    """Bring a run's tables here, those that are new or have changed; return the directory of the copy."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(parts.path)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    copy = Path(home, "numscope", parts.scheme, parts.netloc.rpartition("@")[2], *parts.path.strip("/").split("/"))
    return refresh(url, *_file_system(url), copy)


def refresh(url: str, files: Any, root: str, copy: Path) -> Path:
    """Bring the copy of the run at `root` of a file system up to date, but for the shards it does not have."""
    from pyarrow.fs import FileSelector, FileType

    try:
        found = files.get_file_info(FileSelector(root, recursive=True))
    except OSError as error:
        raise RunError(f"{url} cannot be read ({_line(error)}): check the address and your credentials") from error
    names = {info.path[len(root) :].lstrip("/"): info for info in found if info.type == FileType.File}
    if "manifest.json" not in names:
        raise RunError(f"{url} has no manifest.json: give the address of a run, the directory that capture wrote")
    copy.mkdir(parents=True, exist_ok=True)
    (copy / ORIGIN).write_text(url, encoding="utf-8")
    for gone in [path for path in copy.rglob("*") if path.is_file() and path.name != ORIGIN]:
        if gone.relative_to(copy).as_posix() not in names:
            gone.unlink()
    for name, info in names.items():
        here = copy / name
        fresh = here.exists() and here.stat().st_size == info.size and here.stat().st_mtime_ns == info.mtime_ns
        if not fresh and (here.exists() or not name.endswith(_LATER)):
            _bring(files, info, here)
    return copy


def fetch_shard(run: Path, file: Path) -> None:
    """Bring a file of a copy from where the run lies, if this is a copy and the file is not there yet."""
    if file.exists() or not (run / ORIGIN).exists():
        return
    url = (run / ORIGIN).read_text(encoding="utf-8")
    files, root = _file_system(url)
    _bring(files, files.get_file_info(f"{root}/{file.relative_to(run).as_posix()}"), file)


def _file_system(url: str) -> tuple[Any, str]:
    from pyarrow.fs import FileSystem

    try:
        files, root = FileSystem.from_uri(url)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise RunError(f"{url} is no address that can be read ({_line(error)}): s3, gs, hdfs and file can") from error
    return files, root.rstrip("/")


def _bring(files: Any, info: Any, here: Path) -> None:
    here.parent.mkdir(parents=True, exist_ok=True)
    part = here.with_name(f".{here.name}.{os.getpid()}.tmp")
    try:
        with files.open_input_stream(info.path) as source, part.open("wb") as target:
            while block := source.read(1 << 22):
                target.write(block)
        if info.mtime_ns is not None:
            os.utime(part, ns=(info.mtime_ns, info.mtime_ns))
        part.replace(here)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise RunError(f"{info.path} could not be copied to {here} ({_line(error)})") from error


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
