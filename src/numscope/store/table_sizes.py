"""The memory that a stranger's table takes, told before it is read: a file of a few KB can say that it holds 100 GB.

Parquet repeats a value at no cost, and a batch of an Arrow stream can be compressed, which numscope's never are.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from numscope.core.untrusted import check_size

# Fields of the tables of Arrow's flatbuffers, and kinds of messages.
_KIND_OF_MESSAGE, _HEADER_OF_MESSAGE, _COMPRESSION_OF_BATCH = 1, 2, 3
_SCHEMA, _BATCH = 1, 3


def check_parquet(file: pq.ParquetFile, path: Path) -> None:
    """Raise where the rows of a Parquet file would not fit into the memory, if each took no more than it must."""
    check_size(file.metadata.num_rows * sum(map(_least_bytes, file.schema_arrow.types)), path)


def _least_bytes(kind: pa.DataType) -> int:
    """Return what a value takes at the least."""
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _least_bytes(kind.value_type)
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:  # of any length: an offset
        return 4


def is_packed(content: memoryview) -> bool:
    """Tell whether an Arrow stream has compressed batches or dictionaries, as far as it can be read."""
    try:
        return any(map(_is_packed, pa.ipc.MessageReader.open_stream(pa.py_buffer(content))))
    except (OSError, pa.ArrowException, struct.error):  # cut off
        return False


def _is_packed(message: pa.ipc.Message) -> bool:
    metadata = bytes(message.metadata)
    root = _number(metadata, 0)
    kind, header = (_place(metadata, root, field) for field in (_KIND_OF_MESSAGE, _HEADER_OF_MESSAGE))
    if metadata[kind] == _SCHEMA:
        return False
    batch = header + _number(metadata, header)
    return metadata[kind] != _BATCH or bool(_place(metadata, batch, _COMPRESSION_OF_BATCH))


def _place(buffer: bytes, table: int, field: int) -> int:
    """Return where a field of a flatbuffer's table lies, 0 where the table has none."""
    (back,) = struct.unpack_from("<i", buffer, table)
    size, *_ = struct.unpack_from("<H", buffer, table - back)
    entry = 4 + 2 * field
    if entry + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", buffer, table - back + entry)
    return table + offset if offset else 0


def _number(buffer: bytes, at: int) -> int:
    (number,) = struct.unpack_from("<I", buffer, at)
    return int(number)
