"""Reads the commit of a repository from git's files: some training jobs must not start a subprocess.

`dirty` is true where a tracked file differs from the index or the index from the commit, and None where it takes too
long to tell.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
import zlib
from pathlib import Path
from typing import TypedDict

_SECONDS = 0.1  # to spend on `dirty`
_HASHED = 1 << 20  # bytes: larger files are judged by size and time alone


class RepositoryState(TypedDict):
    """The state of a repository, as the manifest has it."""

    commit: str
    branch: str
    dirty: bool | None


def repository_state(directory: Path) -> RepositoryState | None:
    """Return the state of the repository that a directory is in, or None."""
    try:
        return _state(directory.resolve())
    except (OSError, ValueError, struct.error, IndexError, zlib.error):
        return None


def _state(directory: Path) -> RepositoryState | None:
    for root in (directory, *directory.parents):
        if (root / ".git").exists():
            break
    else:
        return None
    git = root / ".git"
    if git.is_file():  # a worktree or submodule: the file names the directory
        _, _, target = git.read_text().partition("gitdir:")
        git = root / target.strip()
    common = git / "commondir"
    shared = git / common.read_text().strip() if common.exists() else git
    head = (git / "HEAD").read_text().strip()
    branch = head[len("ref: refs/heads/") :] if head.startswith("ref: refs/heads/") else ""
    commit = _resolve(git, shared, head[5:]) if head.startswith("ref: ") else head
    try:
        dirty = _dirty(root, git, shared, commit)
    except (OSError, ValueError, struct.error, IndexError, zlib.error):
        dirty = None
    return {"commit": commit, "branch": branch, "dirty": dirty}


def _resolve(git: Path, shared: Path, reference: str) -> str:
    for directory in (git, shared):
        if (directory / reference).exists():
            return (directory / reference).read_text().strip()
    packed = shared / "packed-refs"
    if packed.exists():
        for line in packed.read_text().splitlines():
            value, _, name = line.partition(" ")
            if name == reference:
                return value
    return ""


def _dirty(root: Path, git: Path, shared: Path, commit: str) -> bool | None:
    """Compare the files with the index, and the index's tree with the commit's."""
    data = (git / "index").read_bytes()
    signature, version, count = struct.unpack_from(">4sII", data)
    if signature != b"DIRC" or version not in (2, 3):
        return None
    deadline = time.monotonic() + _SECONDS
    at = 12
    for number in range(count):
        if number % 256 == 0 and time.monotonic() > deadline:
            return None
        seconds, nanoseconds = struct.unpack_from(">II", data, at + 8)
        mode, size = struct.unpack_from(">I", data, at + 24)[0], struct.unpack_from(">I", data, at + 36)[0]
        digest, flags = data[at + 40 : at + 60], struct.unpack_from(">H", data, at + 60)[0]
        start = at + (64 if flags & 0x4000 else 62)
        end = data.index(b"\0", start)
        at += (end - at + 8) & ~7
        if mode >> 12 == 0b1000 and _changed(root / os.fsdecode(data[start:end]), size, seconds, nanoseconds, digest):
            return True
    return _staged(data, at, shared, commit)


def _changed(path: Path, size: int, seconds: int, nanoseconds: int, digest: bytes) -> bool:
    try:
        state = os.lstat(path)
    except FileNotFoundError:
        return True
    if (state.st_mtime_ns // 10**9) & 0xFFFFFFFF == seconds and state.st_mtime_ns % 10**9 == nanoseconds:
        return state.st_size & 0xFFFFFFFF != size
    if state.st_size & 0xFFFFFFFF != size or state.st_size > _HASHED:
        return True
    content = path.read_bytes()  # another time: hash it
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).digest() != digest


def _staged(data: bytes, at: int, shared: Path, commit: str) -> bool | None:
    """Tell from the index's cached tree whether something is staged that is not committed."""
    while at + 8 < len(data) - 20:
        name, length = struct.unpack_from(">4sI", data, at)
        if name == b"TREE":
            body = data[at + 8 : at + 8 + length]
            path_end = body.index(b"\0")
            line_end = body.index(b"\n", path_end)
            if int(body[path_end + 1 : line_end].split(b" ")[0]) < 0:
                return None  # the cached tree is out of date, as it is after `git add`
            tree = body[line_end + 1 : line_end + 21].hex()
            loose = shared / "objects" / commit[:2] / commit[2:]
            if not loose.exists():  # packed: an up-to-date tree almost always is the commit's
                return False
            _, _, content = zlib.decompress(loose.read_bytes()).partition(b"\0")
            return content[:45] != b"tree " + tree.encode()
        at += 8 + length
    return None
