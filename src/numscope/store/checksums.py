"""Checksums of a run's files, so that damage is named and never read as numbers.

| file | what is checked, when it is read |
|---|---|
| `manifest.json`, `rank.json`, a line of `steps.jsonl` | the CRC of its content, in its member `checksum` |
| `000000.*.arrows`, an open segment | the CRC of each stream up to its last batch, by the lines of `000000.checksums` |
| `000000/*.parquet`, a closed one | the CRCs of its pages, and of its footer by `000000/checksums.json` |
| `*.safetensors` | the hash of each tensor, which is its key |

A rank's files carry its `id`, a random number: those of another run are noticed. Runs of 0.1.0 have no checksums.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from numscope.core.errors import RunError
from numscope.core.json_value import JsonObject
from numscope.store.files import write_all

MEMBER = "checksum"
CURE = "copy it again from where the run was made, or capture again"
_TRAILER = 8  # bytes at the end of a Parquet file: the length of its footer, and its magic word


def sealed(document: Mapping[str, object], of: str = "") -> JsonObject:
    """Return a document with its checksum; `of` is the id of the rank that it belongs to."""
    plain = json.loads(json.dumps({name: value for name, value in document.items() if name != MEMBER}, default=str))
    return {**plain, MEMBER: _crc(plain, of)}


def is_intact(document: JsonObject, of: str = "", needed: bool = False) -> bool:
    """Tell whether a document is as it was sealed; one without a checksum is, unless it must have one."""
    if MEMBER not in document:
        return not needed
    return bool(document[MEMBER] == _crc({name: value for name, value in document.items() if name != MEMBER}, of))


def _crc(plain: JsonObject, of: str) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(f'{of}{text}'.encode()):08x}"


class Checked(NamedTuple):
    """The bytes at the start of a stream whose checksum is known."""

    size: int
    crc: int


class StreamChecksums:
    """Writes `000000.checksums`: after each batch a line with the size and the CRC of each stream of the segment."""

    def __init__(self, path: Path, of: str) -> None:
        self._of = of
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
        self._streams: dict[str, Checked] = {}

    def add(self, table: str, content: memoryview) -> None:
        """Count bytes that were appended to a table's stream."""
        size, crc = self._streams.get(table, Checked(0, 0))
        self._streams[table] = Checked(size + len(content), zlib.crc32(content, crc))

    def commit(self) -> None:
        """Say that what was added is whole."""
        line = json.dumps(sealed(dict(self._streams), self._of)).encode() + b"\n"
        write_all(self._fd, [memoryview(line)])

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_stream_checksums(path: Path, of: str) -> dict[str, Checked]:
    """Return the last state that is written wholly of each stream of an open segment."""
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1].splitlines()  # a line without its end was cut off
    if not complete:
        return {}
    try:
        line = json.loads(complete[-1])
        if not is_intact(line, of, needed=True):
            raise ValueError
        return {table: Checked(*map(int, value)) for table, value in line.items() if table != MEMBER}
    except (ValueError, TypeError, AttributeError):
        raise RunError(f"{path} is damaged (its last line): {CURE}") from None


def footer_crc(path: Path) -> Checked:
    """Return the size of a Parquet file and the CRC of its footer, which says where and what its pages are."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _TRAILER, 0))
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(size - _TRAILER - length, 0))
        return Checked(size, zlib.crc32(file.read(length + _TRAILER)))


def content_hash(raw: NDArray[np.uint8]) -> int:
    """Return the fingerprint's hash of bytes: the same whatever their dtype is."""
    from numscope.fingerprint.numpy_form import NumpyBatch

    batch = NumpyBatch()
    # The hash is of 32-bit words. As float32 it takes the least time: 3 GB/s a core, against 0.8 of bytes.
    batch.add(raw.view(np.float32) if raw.size % 4 == 0 and raw.ctypes.data % 4 == 0 else raw)
    return int(batch.collect().hash[0])
