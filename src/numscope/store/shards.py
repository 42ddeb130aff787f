"""Kept tensors: safetensors shards that grow while the job runs and are whole after every write.

safetensors puts its index, a JSON object, in front of the data. Room for it is reserved when a shard begins, filled
with spaces as the format allows; each write appends the data, then puts the new entries over the closing brace. So a
shard needs no second file while it is open, no copy when it is closed, and a killed job leaves shards that any reader
of safetensors opens (unless it was killed between those two writes: then this module's reader still does).
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numscope.core.errors import RunError
from numscope.store.dtypes import SAFETENSORS, numpy_dtype
from numscope.store.files import write_all
from numscope.store.schema import FORMAT

SHARD_BYTES = 256 << 20
_FIRST_HEADER = 128 << 10  # a short run keeps few tensors,
_HEADER = 1 << 20  # a long one should not need many files
_OPENING = json.dumps({"__metadata__": {"format": FORMAT}}, separators=(",", ":"))[:-1].encode()

# Hash, dtype, shape of a sample or number of elements, sampled: equal means bitwise equal. The hash is that of the
# elements in row-major order, so what is only reshaped is one content; the tables know each tensor's own shape.
Identity = tuple[int, str, tuple[int, ...] | int, bool]


@dataclass(frozen=True)
class Kept:
    """One array to be stored."""

    hash: int | None
    dtype: str
    shape: tuple[int, ...]
    sampled: bool
    array: NDArray[Any]


class ShardWriter:
    """Appends arrays to the shards of one rank, each distinct content once."""

    def __init__(self, directory: Path, shard_bytes: int = SHARD_BYTES) -> None:
        self._directory = directory
        self._limit = shard_bytes
        self._places: dict[Identity, tuple[str, str]] = {}
        self._keys: set[str] = set()
        self._count = 0
        self._fd = -1
        self._name = ""
        self._reserved = self._header_end = self._data_end = 0

    def add(self, items: Iterable[Kept]) -> list[tuple[str, str]]:
        """Store what is not stored yet; return (shard, key) of each item."""
        places: list[tuple[str, str]] = []
        buffers: list[memoryview] = []
        entries: list[bytes] = []
        header = size = 0
        # All buffers first: what cannot be stored must fail before anything is noted as stored.
        for item, buffer in [(item, _buffer(item.array)) for item in items]:
            content = item.hash
            if content is None:
                content = int.from_bytes(hashlib.blake2b(buffer, digest_size=8).digest(), "little")
            identity = (content, item.dtype, item.shape if item.sampled else item.array.size, item.sampled)
            place = self._places.get(identity)
            if place is None:
                start = self._data_end + size
                full = self._fd >= 0 and start > 0 and start + len(buffer) > self._limit
                key = f"{content:016x}" if f"{content:016x}" not in self._keys else f"{content:016x}.{len(self._keys)}"
                entry = _entry(key, item.array, start)
                if full or self._fd < 0 or self._header_end + header + len(entry) + 2 > self._reserved:
                    self._append(buffers, entries)
                    buffers, entries, header, size = [], [], 0, 0
                    self._begin()
                    entry = _entry(key, item.array, 0)
                place = self._places[identity] = (self._name, key)
                self._keys.add(key)
                buffers.append(buffer)
                entries.append(entry)
                header += len(entry) + 1
                size += len(buffer)
            places.append(place)
        self._append(buffers, entries)
        return places

    def close(self) -> None:
        """Close the open shard; it is whole already."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _begin(self) -> None:
        self.close()
        self._reserved = _HEADER if self._count else _FIRST_HEADER
        self._name = f"{self._count:06d}.safetensors"
        self._count += 1
        self._fd = os.open(self._directory / self._name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        text = (_OPENING + b"}").ljust(self._reserved)
        write_all(self._fd, [memoryview(self._reserved.to_bytes(8, "little") + text)])
        self._header_end = len(_OPENING)
        self._data_end = 0

    def _append(self, buffers: list[memoryview], entries: list[bytes]) -> None:
        if not entries:
            return
        write_all(self._fd, buffers)
        text = b"," + b",".join(entries)
        if os.pwrite(self._fd, text + b"}", 8 + self._header_end) != len(text) + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._header_end += len(text)
        self._data_end += sum(len(buffer) for buffer in buffers)


def _buffer(array: NDArray[Any]) -> memoryview:
    """Return an array's bytes, without a copy where its elements lie in order."""
    if array.dtype.hasobject:
        raise TypeError(f"an array of {array.dtype} cannot be stored")
    whole = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return whole.reshape(-1).view(np.uint8).data if whole.size else memoryview(b"")


def _entry(key: str, array: NDArray[Any], start: int) -> bytes:
    code = SAFETENSORS.get(array.dtype.name)
    shape = list(array.shape) if code else [*array.shape, array.dtype.itemsize]
    entry = {"dtype": code or "U8", "shape": shape, "data_offsets": [start, start + array.nbytes]}
    return f'"{key}":{json.dumps(entry, separators=(",", ":"))}'.encode()


def key_of_view(key: str, offset: int, strides: Iterable[int]) -> str:
    """Return how the tables name elements of an entry, `0123456789abcdef[768:256,1]`: they begin at an element, and
    along each dimension of the tensor's shape the next one is so many further."""
    return f"{key}[{offset}:{','.join(map(str, strides))}]"


def entry_of(key: str) -> str:
    """Return the entry that a key of the tables names, or elements of which it names."""
    return key.partition("[")[0]


def _elements(flat: NDArray[Any], key: str, shape: tuple[int, ...]) -> NDArray[Any] | None:
    """Return those elements of an entry that a key names, in order; None where the entry does not have them."""
    offset, _, steps = key.partition("[")[2].removesuffix("]").partition(":")
    try:
        start, strides = int(offset), tuple(map(int, steps.split(","))) if steps else ()
    except ValueError:
        return None
    if len(strides) != len(shape) or min((start, *strides)) < 0 or 0 in shape:
        return None
    if start + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) >= len(flat):
        return None
    strides = tuple(flat.itemsize * stride for stride in strides)
    found = np.lib.stride_tricks.as_strided(flat[start:], shape, strides, writeable=False)
    whole = np.ascontiguousarray(found).reshape(shape)
    whole.flags.writeable = False
    return whole


class Shard:
    """A shard opened for reading; arrays are views of the file, read-only, and copied only where not aligned."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise RunError(
                f"{path} is missing: copy it from where the run was made (all but its tensors is still readable)"
            ) from None
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read ({error}): capture again") from error
        reserved = int.from_bytes(self._data[:8], "little")
        if len(self._data) < 8 or reserved > len(self._data) - 8:
            raise self._damaged("its header is cut off")
        self._start = 8 + reserved
        self.entries = self._index(self._data[8 : self._start])

    def array(self, key: str, dtype: str, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
        """Return the array that a key of the tables names; `shape` None means the shape in the file (a sample's)."""
        entry = self.entries.get(entry_of(key))
        if entry is None:
            raise self._damaged(f"it has no entry {key}")
        start, end = entry["data_offsets"]
        if self._start + end > len(self._data):
            raise self._damaged(f"{self._start + end - len(self._data)} bytes are cut off its end")
        kind = numpy_dtype(dtype)
        if kind is None or kind.itemsize == 0:
            kind, stored = np.dtype(np.uint8), entry["shape"]
        else:
            stored = entry["shape"] if SAFETENSORS.get(dtype) == entry["dtype"] else entry["shape"][:-1]
        count = (end - start) // kind.itemsize
        wanted = tuple(stored if shape is None else shape)
        is_part = "[" in key
        if not is_part and int(np.prod(wanted, dtype=np.int64)) != count:
            raise self._damaged(f"entry {key} has {count} elements, the tables say {list(wanted)}")
        if not count:
            return np.zeros(wanted, kind)
        array = np.frombuffer(self._data, kind, count, self._start + start)
        if not array.flags.aligned:
            array = array.copy()
            array.flags.writeable = False
        if not is_part:
            return array.reshape(wanted)
        part = _elements(array, key, wanted)
        if part is None:
            raise self._damaged(f"its {count} elements are not those that the tables name by {key}")
        return part

    def keys(self) -> list[str]:
        """Return the keys of the entries."""
        return [key for key in self.entries if key != "__metadata__"]

    def _index(self, text: bytes) -> dict[str, Any]:
        try:
            entries = json.loads(text)
        except ValueError:
            # Killed while the entries were written: those before the last complete one are whole.
            try:
                entries = json.loads(text[: text.rindex(b"]}") + 2] + b"}")
            except ValueError:
                raise self._damaged("its header is not JSON") from None
        if not isinstance(entries, dict):
            raise self._damaged("its header is not a JSON object")
        return entries

    def _damaged(self, what: str) -> RunError:
        return RunError(f"{self.path} is damaged ({what}): copy it again from where the run was made, or capture again")
