"""Reads parts of a file: bytes by their place, as elements, with a check of every number that the file gives."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from numscope.core.dtypes import AnyArray, AnyDtype
from numscope.core.errors import NumscopeError, RunError
from numscope.core.untrusted import shown
from numscope.store.dtypes import numpy_dtype
from numscope.store.remote.copies import file_system
from numscope.weights.tensor import Read

if TYPE_CHECKING:
    from pyarrow import NativeFile

_LARGEST = 1 << 62  # elements that a shape may say: its product is a number of the machine


Place = Path | str  # a path, or the address of a file


@contextmanager
def decoding(path: Place) -> Iterator[None]:
    """Name the file where decoding it fails: the libraries that do it raise what they like of a damaged file."""
    try:
        yield
    except NumscopeError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            raise  # says itself what is wrong
        said = shown(" ".join(str(error).split()))[:200] or type(error).__name__
        raise RunError(f"{path} is damaged ({said}): copy it again from where it was made") from None


class File:
    """A file that stays open; reads go past Python's buffers, so that memory holds what is asked for alone.

    Of a file at an address, the parts that are asked for are fetched.
    """

    def __init__(self, path: Place) -> None:
        self.path = path
        self._remote: NativeFile | None = None
        if isinstance(path, str):
            files, root = file_system(path)
            try:
                self._remote = files.open_input_file(root)
            except OSError as error:
                raise RunError(f"{path} cannot be read ({error}): check the address and your credentials") from None
            self.size = int(self._remote.size())
            return
        try:
            self._fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise RunError(f"{path} is missing: copy it from where the weights were written") from None
        self.size = os.fstat(self._fd).st_size

    def bytes(self, offset: int, count: int) -> memoryview:
        """Return some bytes."""
        if offset < 0 or count < 0 or offset + count > self.size:
            raise self.damaged(f"it names {count} bytes at {offset}, and has {self.size}")
        if self._remote is not None:
            self._remote.seek(offset)
            return memoryview(self._remote.read(count))
        if count <= 1 << 16:
            return memoryview(os.pread(self._fd, count, offset))
        held = np.empty(count, np.uint8)
        view = memoryview(held.data)
        done = 0
        while done < count:
            part = os.preadv(self._fd, [view[done : done + (1 << 30)]], offset + done)
            if not part:
                raise self.damaged("it has become shorter")
            done += part
        return view

    def damaged(self, why: str) -> RunError:
        """Return the error of a file that is not what it says."""
        return RunError(f"{self.path} is damaged ({shown(why)}): copy it again from where it was made")

    def reader(self, offset: int, dtype: str, shape: tuple[int, ...]) -> Read:
        """Return what reads rows of a tensor that lies at an offset in row-major order."""
        kind = dtype_of(dtype, self.path)
        width = shape[-1] if shape else 1
        check_shape(shape, self.path)
        if offset < 0 or offset + math.prod(shape) * kind.itemsize > self.size:
            raise self.damaged(f"a tensor of {list(shape)} reaches beyond its end")

        def read(start: int, stop: int) -> AnyArray:
            row = width * kind.itemsize
            raw = np.frombuffer(self.bytes(offset + start * row, (stop - start) * row), np.uint8)
            return raw.view(kind).reshape(stop - start, width)

        return read

    def __del__(self) -> None:
        fd = getattr(self, "_fd", None)
        if fd is not None and not sys.is_finalizing():
            os.close(fd)


def check_shape(shape: tuple[int, ...], where: object) -> tuple[int, ...]:
    """Return a shape after making sure that it is one."""
    if any(not isinstance(size, int) or size < 0 for size in shape) or math.prod(max(1, n) for n in shape) > _LARGEST:
        raise RunError(
            f"{where} is damaged (a tensor of the shape {list(shape)}): copy it again from where it was made"
        )
    return shape


def dtype_of(name: str, where: object) -> AnyDtype:
    """Return the numpy dtype of a name."""
    kind = numpy_dtype(name)
    if kind is None or kind.hasobject:
        raise RunError(f"{where} has elements of the type {name}, which cannot be read: convert it to safetensors")
    return kind


def strided(flat: AnyArray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> AnyArray:
    """Return a view of elements in memory by offset and strides, both counted in elements."""
    raw = flat.view(f"V{flat.itemsize}")[offset:]  # numpy's strides don't know the dtypes of ml_dtypes
    return np.lib.stride_tricks.as_strided(raw, shape, [n * flat.itemsize for n in strides], writeable=False)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a tensor in row-major order."""
    return tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))


def rows_of(array: AnyArray) -> Read:
    """Return what reads rows of an array in memory, whatever its strides, copying no more than it is asked for."""
    if array.ndim < 3:
        matrix = array.reshape(1, -1) if array.ndim < 2 else array
        return lambda start, stop: np.ascontiguousarray(matrix[start:stop])
    inner = max(1, math.prod(array.shape[1:-1]))

    def read(start: int, stop: int) -> AnyArray:
        first, last = start // inner, -(-stop // inner)
        part = np.ascontiguousarray(array[first:last]).reshape(-1, array.shape[-1])
        return part[start - first * inner : stop - first * inner]

    return read
