"""Writes kept tensors into safetensors shards that grow while the job runs and are complete files after every write.

safetensors puts its index, a JSON object, in front of the data. Room for it is reserved when a shard begins, filled
with spaces as the format allows; each write appends the data, then puts the new entries over the closing brace. So a
shard needs no second file while it is open, no copy when it is closed, and a killed job leaves shards that any reader
of safetensors opens (unless it was killed between those two writes: then numscope's reader still does).

A short run has one shard. Where one lane cannot keep up, shards of other lanes are begun beside it (see `lanes`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from numscope.core.dtypes import AnyArray, AnyDtype
from numscope.store.batch import OnDevice
from numscope.store.dtypes import SAFETENSORS
from numscope.store.files import write_all
from numscope.store.schema import FORMAT
from numscope.store.shards import SAMPLE, UNKNOWN
from numscope.store.writing.lanes import LANES, Job, Lane

SHARD_BYTES = 1 << 30
_FIRST_HEADER = 128 << 10  # bytes: a short run keeps few tensors
_HEADER = 1 << 20  # bytes: a long run should not need many files
_OPENING = json.dumps({"__metadata__": {"format": FORMAT}}, separators=(",", ":"))[:-1].encode()
_RUN = 8 << 20  # bytes that go to one lane in one piece
_MANY = 32 << 20  # bytes waiting in every lane: time for another one

Place = tuple[str, str]  # shard, key
Bytes = memoryview | OnDevice


@dataclass(frozen=True)
class Kept:
    """One array to be stored."""

    hash: int | None
    dtype: str
    shape: tuple[int, ...]
    sampled: bool
    array: AnyArray | OnDevice


class _Identity(NamedTuple):
    """The key of a content: two arrays of equal identities are bitwise equal.

    The hash is of the elements in row-major order: arrays that differ only in shape are stored once, and the tables have
    each tensor's own shape.
    """

    hash: int
    dtype: str
    size: tuple[int, ...] | int  # the shape of a sample, or the number of elements
    sampled: bool


class ShardWriter:
    """Appends arrays to the shards of one rank, each distinct content once."""

    def __init__(self, directory: Path, shard_bytes: int = SHARD_BYTES, lanes: int = LANES) -> None:
        self._directory = directory
        self._limit = shard_bytes
        self._most = lanes
        self._places: dict[_Identity, Place] = {}
        self._keys: set[str] = set()
        self._count = 0
        self._growing: list[_Growing] = []
        self._begun: list[str] = []  # shards, since `next_segment` was asked last
        self.bytes = 0  # appended since then

    def add(self, items: Iterable[Kept]) -> list[Place]:
        """Store the contents that are not stored yet; return the place of each item."""
        places, jobs = self.start(items)
        for job in jobs:
            job.wait()
        return places

    def start(self, items: Iterable[Kept]) -> tuple[list[Place], list[Job]]:
        """Begin to store the contents that are not stored yet; return the place that each item has once the jobs are done."""
        places: list[Place] = []
        jobs: list[Job] = []
        growing: _Growing | None = None
        # All buffers first: an array that cannot be stored must raise before any place is remembered.
        for item, buffer in [(item, _buffer(item)) for item in items]:
            content = item.hash
            if content is None:
                assert not isinstance(buffer, OnDevice)
                content = int.from_bytes(hashlib.blake2b(buffer, digest_size=8).digest(), "little")
            size = item.shape if item.sampled else item.array.size
            identity = _Identity(content, item.dtype, size, item.sampled)
            place = self._places.get(identity)
            if place is None:
                key = _key(item, content, buffer)
                if key in self._keys:
                    key = f"{key}.{len(self._keys)}"
                if growing is None or growing.size >= _RUN:
                    if growing is not None:
                        jobs += growing.send()
                    growing = self._choose()
                if not growing.append(key, item.array, buffer, self._limit):
                    jobs += growing.send()
                    growing.begin(self._directory / f"{self._count:06d}.safetensors")
                    self._begun.append(growing.name)
                    self._count += 1
                    growing.append(key, item.array, buffer)
                place = self._places[identity] = (growing.name, key)
                self._keys.add(key)
                self.bytes += item.array.nbytes
            places.append(place)
        if growing is not None:
            jobs += growing.send()
        return places, jobs

    def next_segment(self) -> list[str]:
        """Begin other shards, to which nothing that is stored counts; return the names of those begun before."""
        for growing in self._growing:
            growing.end()
        self._places.clear()
        self._keys.clear()
        names, self._begun, self.bytes = self._begun, [], 0
        return names

    def rest(self) -> None:
        """Wait for the jobs, and end the threads until more is to be stored."""
        for growing in self._growing:
            growing.lane.close()

    def close(self) -> None:
        """Wait for the jobs and close the open shards, which are complete files already."""
        for growing in self._growing:
            growing.close()
        self._growing = []

    def _choose(self) -> _Growing:
        """Return the shard with the least to write; a new one where even that is much."""
        least = min(self._growing, key=lambda growing: growing.lane.waiting, default=None)
        if least is None or (least.lane.waiting >= _MANY and len(self._growing) < self._most):
            least = _Growing(Lane(f"numscope-shards-{len(self._growing)}"))
            self._growing.append(least)
        return least


class _Growing:
    """The open shard of a lane, and the arrays to append to it next."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.name = ""
        self.size = 0  # bytes not sent yet
        self._fd = -1
        self._reserved = self._header_end = self._data_end = 0  # as they will be when everything is written
        self._buffers: list[Bytes] = []
        self._entries: list[bytes] = []

    def begin(self, path: Path) -> None:
        """Begin another shard; the lane closes the one before when that is written."""
        self._reserved = _HEADER if self._fd >= 0 else _FIRST_HEADER
        self.end()
        self.name = path.name
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        text = (_OPENING + b"}").ljust(self._reserved)
        write_all(self._fd, [memoryview(self._reserved.to_bytes(8, "little") + text)])
        self._header_end = len(_OPENING)
        self._data_end = 0

    def append(self, key: str, array: AnyArray | OnDevice, buffer: Bytes, limit: int | None = None) -> bool:
        """Append an array with the next send; return False where no shard is open or it has no room."""
        size = array.nbytes
        if self._fd < 0 or (limit is not None and self._data_end > 0 and self._data_end + size > limit):
            return False
        entry = _entry(key, array, self._data_end)
        if self._header_end + len(entry) + 2 > self._reserved:
            return False
        self._buffers.append(buffer)
        self._entries.append(entry)
        self._header_end += len(entry) + 1
        self._data_end += size
        self.size += size
        return True

    def send(self) -> list[Job]:
        """Have the lane write the appended arrays."""
        if not self._entries:
            return []
        fd, buffers, text = self._fd, self._buffers, b"," + b",".join(self._entries)
        at, size = 8 + self._header_end - len(text), self.size
        self._buffers, self._entries, self.size = [], [], 0
        return [self.lane.put(lambda: _write(fd, buffers, text, at), size)]

    def end(self) -> None:
        """Have the lane close the shard when everything is written."""
        if self._fd >= 0:
            self.lane.put(_closing(self._fd), 0)
            self._fd = -1

    def close(self) -> None:
        """Wait until everything is written, and close the shard."""
        self.lane.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _key(item: Kept, content: int, buffer: Bytes) -> str:
    """Return the key of a content: the hash of the bytes that are stored, by which a reader verifies them."""
    if not item.sampled or item.hash is None:
        return f"{content:016x}"
    if isinstance(buffer, OnDevice):
        return f"{content:016x}{UNKNOWN}"  # the whole tensor's, as the sample's is not known yet
    return f"{int.from_bytes(hashlib.blake2b(buffer, digest_size=8).digest(), 'little'):016x}{SAMPLE}"


def _closing(fd: int) -> Callable[[], None]:
    return lambda: os.close(fd)


def _write(fd: int, buffers: Sequence[Bytes], text: bytes, at: int) -> None:
    """Append the data, then put its entries into the index."""
    for fetch, group in groupby(buffers, lambda buffer: buffer.fetch if isinstance(buffer, OnDevice) else None):
        if fetch is None:
            write_all(fd, [buffer for buffer in group if not isinstance(buffer, OnDevice)])
            continue
        for piece in fetch([buffer.data for buffer in group if isinstance(buffer, OnDevice)]):
            write_all(fd, [piece])
    if os.pwrite(fd, text + b"}", at) != len(text) + 1:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _buffer(item: Kept) -> Bytes:
    """Return an array's bytes, without a copy of a contiguous array."""
    array = item.array
    if isinstance(array, OnDevice):
        if item.hash is not None:
            return array
        return memoryview(b"".join(map(bytes, array.fetch([array.data]))))  # without a hash, its bytes identify it
    if array.dtype.hasobject:
        raise TypeError(f"an array of {array.dtype} cannot be stored")
    whole = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return whole.reshape(-1).view(np.uint8).data if whole.size else memoryview(b"")


@cache
def _code(dtype: AnyDtype) -> str | None:
    return SAFETENSORS.get(dtype.name)  # cached: numpy builds the name each time, slowly


def _entry(key: str, array: AnyArray | OnDevice, start: int) -> bytes:
    code = _code(array.dtype)
    shape = array.shape if code else (*array.shape, array.dtype.itemsize)
    sizes = ",".join(map(str, shape))
    return f'"{key}":{{"dtype":"{code or "U8"}","shape":[{sizes}],"data_offsets":[{start},{start + array.nbytes}]}}'.encode()
