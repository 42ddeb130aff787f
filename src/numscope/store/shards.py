"""Reads shards of kept tensors: safetensors files, and the keys by which the tables name their elements."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

import numpy as np

from numscope.core.dtypes import AnyArray
from numscope.core.errors import RunError, describe
from numscope.core.untrusted import check_size
from numscope.store.checksums import content_hash
from numscope.store.dtypes import SAFETENSORS, numpy_dtype

SAMPLE = "s"  # at the end of the key of a sample, whose own bytes it is the digest of
UNKNOWN = "u"  # … of what was not in the host's memory when its key was made, and of which it is another's hash


class _Entry(TypedDict):
    """An entry of a shard's header, as safetensors defines it."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def key_of_view(key: str, offset: int, strides: Iterable[int]) -> str:
    """Return the key of a view of an entry: `0123456789abcdef[768:256,1]` has the offset 768 and the strides (256, 1)."""
    return f"{key}[{offset}:{','.join(map(str, strides))}]"


def entry_of(key: str) -> str:
    """Return the entry that a key names, or that a key's view is of."""
    return key.partition("[")[0]


def _is_whole(entry: object) -> bool:
    """Tell whether an entry has what safetensors asks of it."""
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        return False
    shape, place = entry.get("shape"), entry.get("data_offsets")
    if not isinstance(shape, list) or not isinstance(place, list) or len(place) != 2:
        return False
    return all(type(number) is int and number >= 0 for number in (*shape, *place))


def _elements(flat: AnyArray, key: str, shape: tuple[int, ...]) -> AnyArray | None:
    """Return the elements of a view's key, in order; None where the entry does not have them."""
    offset, _, steps = key.removeprefix(f"{entry_of(key)}[").removesuffix("]").partition(":")
    try:
        start, strides = int(offset), tuple(map(int, steps.split(","))) if steps else ()
    except ValueError:
        return None
    if len(strides) != len(shape) or min((start, *strides)) < 0 or 0 in shape:
        return None
    if start + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) >= len(flat):
        return None
    check_size(math.prod(shape) * flat.itemsize, f"the tensor {key}")
    strides = tuple(flat.itemsize * stride for stride in strides)
    view = np.lib.stride_tricks.as_strided(flat[start:], shape, strides, writeable=False)
    whole = np.ascontiguousarray(view).reshape(shape)
    whole.flags.writeable = False
    return whole


class Shard:
    """A shard opened for reading; arrays are read-only views of the file, or copies where they are not aligned.

    `checked` says that the keys are the hashes of what is stored under them; each is verified when it is first read.
    """

    def __init__(self, path: Path, checked: bool = False) -> None:
        self.path = path
        self._unverified = checked
        self._verified: set[str] = set()
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise RunError(
                f"{path} is missing: copy it from where the run was made (all but its tensors is still readable)"
            ) from None
        except PermissionError as error:
            raise RunError(describe(error)) from error
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read ({error}): capture again") from error
        reserved = int.from_bytes(self._data[:8], "little")
        if len(self._data) < 8 or reserved > len(self._data) - 8:
            raise self._damaged("its header is cut off")
        self._start = 8 + reserved
        self.entries = self._index(self._data[8 : self._start])

    def array(self, key: str, dtype: str, shape: tuple[int, ...] | None = None) -> AnyArray:
        """Return the array that a key of the tables names; `shape` None means the shape in the file (a sample's)."""
        entry = self.entries.get(entry_of(key))
        if entry is None:
            raise self._damaged(f"it has no entry {key}")
        if not _is_whole(entry):
            raise self._damaged(f"entry {key} does not say what it holds")
        start, end = entry["data_offsets"]
        if not 0 <= start <= end:
            raise self._damaged(f"entry {key} has no place in it")
        if self._start + end > len(self._data):
            raise self._damaged(f"{self._start + end - len(self._data)} bytes are cut off its end")
        self._verify(entry_of(key), start, end)
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

    def _verify(self, key: str, start: int, end: int) -> None:
        if not self._unverified or key in self._verified:
            return
        raw = np.frombuffer(self._data, np.uint8, end - start, self._start + start)
        expected = int(key[:16], 16) if len(key) >= 16 else None
        is_known = UNKNOWN in key or (SAMPLE not in key and expected == content_hash(raw))
        if not is_known and expected != int.from_bytes(hashlib.blake2b(raw.data, digest_size=8).digest(), "little"):
            raise self._damaged(f"entry {key} is not what was stored")
        self._verified.add(key)

    def check_end(self) -> None:
        """Raise where the file ends before what its header names."""
        ends = [entry["data_offsets"][1] for entry in self.entries.values() if _is_whole(entry)]
        if ends and self._start + max(ends) > len(self._data):
            raise self._damaged(f"{self._start + max(ends) - len(self._data)} bytes are cut off its end")

    def keys(self) -> list[str]:
        """Return the keys of the entries."""
        return [key for key in self.entries if key != "__metadata__"]

    def _index(self, text: bytes) -> dict[str, _Entry]:
        try:
            entries = json.loads(text)
        except ValueError:
            # The job was killed while it wrote entries: keep the complete ones.
            try:
                entries = json.loads(text[: text.rindex(b"]}") + 2] + b"}")
            except ValueError:
                raise self._damaged("its header is not JSON") from None
        if not isinstance(entries, dict):
            raise self._damaged("its header is not a JSON object")
        return entries

    def _damaged(self, what: str) -> RunError:
        return RunError(f"{self.path} is damaged ({what}): copy it again from where the run was made, or capture again")
