"""Reads GGUF, llama.cpp's file of weights: its numbers as what its block types stand for."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

import numpy as np

from numscope.core.dtypes import AnyArray
from numscope.core.untrusted import check_size
from numscope.weights.sources.files import File, Place, check_shape
from numscope.weights.sources.gguf_blocks import BLOCKS, PLAIN, BlockType
from numscope.weights.tensor import Encoding, Read, Tensor, grid_tolerance

MAGIC = b"GGUF"
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value of each plain type
_TEXT, _LIST, _U32 = 8, 9, 4
_ALIGNMENT = 32  # where the file does not say
_AXES = 8  # of a tensor, at most


class _Cursor:
    """The place up to which a header was read."""

    def __init__(self, file: File) -> None:
        self.file, self.at = file, 0

    def number(self, form: str) -> int:
        size = struct.calcsize(form)
        value = struct.unpack("<" + form, self.file.bytes(self.at, size))[0]
        self.at += size
        return int(value)

    def text(self) -> str:
        length = self.number("Q")
        if length > self.file.size:
            raise self.file.damaged(f"a name of {length} bytes")
        content = bytes(self.file.bytes(self.at, length)).decode("utf-8", "replace")
        self.at += length
        return content

    def skip(self, kind: int, depth: int = 0) -> None:
        """Go past a value."""
        if kind == _TEXT:
            length = self.number("Q")
            self.at += length
        elif kind == _LIST and depth < 4:
            inner, count = self.number("I"), self.number("Q")
            if inner in _SIZES:
                self.at += count * _SIZES[inner]
            else:
                if count > self.file.size:
                    raise self.file.damaged(f"a list of {count} values")
                for _ in range(count):
                    self.skip(inner, depth + 1)
        elif kind in _SIZES:
            self.at += _SIZES[kind]
        else:
            raise self.file.damaged(f"a value of the unknown type {kind}")
        if self.at > self.file.size:
            raise self.file.damaged("its header is cut off")


def read(path: Place) -> Iterator[Tensor]:
    """Yield the tensors of a file."""
    file = File(path)
    cursor = _Cursor(file)
    if file.size < 24 or bytes(file.bytes(0, 4)) != MAGIC:
        raise file.damaged("it does not begin as GGUF does")
    cursor.at = 4
    version = cursor.number("I")
    if version not in (2, 3):
        raise file.damaged(f"it is of version {version}; 2 and 3 are known")
    tensors, values = cursor.number("Q"), cursor.number("Q")
    if max(tensors, values) > file.size:
        raise file.damaged(f"it says that it has {tensors} tensors and {values} values")
    alignment = _ALIGNMENT
    for _ in range(values):
        key, kind = cursor.text(), cursor.number("I")
        if key == "general.alignment" and kind == _U32:
            alignment = max(1, cursor.number("I"))
        else:
            cursor.skip(kind)
    found = []
    for _ in range(tensors):
        name, axes = cursor.text(), cursor.number("I")
        if axes > _AXES:
            raise file.damaged(f"{name} has {axes} axes")
        shape = tuple(cursor.number("Q") for _ in range(axes))[::-1]  # the fastest axis comes first there
        found.append((name, check_shape(shape, path), cursor.number("I"), cursor.number("Q")))
    data = -(-cursor.at // alignment) * alignment
    for name, shape, code, offset in found:
        if code in PLAIN:
            yield Tensor(name, PLAIN[code], shape, file.reader(data + offset, PLAIN[code], shape))
        elif code in BLOCKS:
            block = BLOCKS[code]
            encoding = Encoding(block.name, grid_tolerance(block.bits))
            yield Tensor(name, "float32", shape, _decoded(file, data + offset, shape, block), encoding)
        else:
            raise file.damaged(f"{name} has the block type {code}, which numscope does not know")


def _decoded(file: File, offset: int, shape: tuple[int, ...], block: BlockType) -> Read:
    width = shape[-1] if shape else 1
    if width % block.elements:
        raise file.damaged(f"a row of {width} is no multiple of {block.elements}, the block of {block.name}")
    row = width // block.elements * block.bytes
    if offset + row * math.prod(shape[:-1]) > file.size:
        raise file.damaged(f"a tensor of {list(shape)} reaches beyond its end")

    def read(start: int, stop: int) -> AnyArray:
        check_size(4 * (stop - start) * width, "a part of a tensor")
        raw = np.frombuffer(file.bytes(offset + start * row, (stop - start) * row), np.uint8)
        with np.errstate(over="ignore", invalid="ignore"):  # a damaged scale may be NaN
            return block.decode(raw.reshape(-1, block.bytes)).reshape(stop - start, width)

    return read
