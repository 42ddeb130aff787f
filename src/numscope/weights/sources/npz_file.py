"""Reads numpy's archives (`.npz`), member by member; pickled objects in them are refused."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from numscope.core.dtypes import AnyArray, AnyDtype
from numscope.core.errors import RunError
from numscope.core.untrusted import check_size
from numscope.store.dtypes import numpy_dtype
from numscope.weights.sources.files import File, check_shape, rows_of
from numscope.weights.tensor import Tensor, check_name

_LOCAL = struct.Struct("<4s5H3L2H")  # the header before a member of a zip archive


def read(path: Path) -> Iterator[Tensor]:
    """Yield the arrays of an archive."""
    file = File(path)
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile:
        raise file.damaged("it is no zip archive") from None
    with archive:
        for info in archive.infolist():
            name = check_name(info.filename, path).removesuffix(".npy")
            with archive.open(info) as member:
                dtype, shape, is_fortran = _header(member, path)
                start = member.tell()
            if info.compress_type == zipfile.ZIP_STORED and not is_fortran and dtype.byteorder != ">":
                local = _LOCAL.unpack(file.bytes(info.header_offset, _LOCAL.size))
                offset = info.header_offset + _LOCAL.size + local[-2] + local[-1] + start
                yield Tensor(name, dtype.name, shape, file.reader(offset, dtype.name, shape))
            else:
                check_size(info.file_size, f"{name} of {path}")
                array = np.frombuffer(archive.read(info), dtype, offset=start)
                array = array.reshape(shape, order="F" if is_fortran else "C")
                yield Tensor(name, dtype.name, shape, rows_of(array))


def _header(member: IO[bytes], path: Path) -> tuple[AnyDtype, tuple[int, ...], bool]:
    """Read the head of an array: its dtype, shape, and whether it lies column by column."""
    head = io.BytesIO(member.read(1 << 16))
    try:
        version = np.lib.format.read_magic(head)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = reader(head)
    except (ValueError, struct.error):
        raise RunError(f"{path} is damaged (a member is no array of numpy): copy it again") from None
    if dtype.hasobject:
        raise RunError(f"{path} has pickled objects in place of numbers: save it as arrays of numbers")
    member.seek(head.tell())
    if dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None:  # so numpy writes bfloat16
        dtype = numpy_dtype("bfloat16") or dtype
    if dtype.names is not None or dtype.kind not in "biufcV":
        raise RunError(f"{path} has elements of the type {dtype}: save it as arrays of numbers")
    return dtype, check_shape(tuple(shape), path), is_fortran


def rows(array: AnyArray) -> Tensor:
    """Return an array in memory as a tensor without a name."""
    return Tensor("", array.dtype.name, tuple(array.shape), rows_of(array))
