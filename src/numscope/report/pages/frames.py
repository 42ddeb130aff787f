"""Encodes columns as bytes for the browser: JSON has no NaN, and a million numbers as text are slow.

A frame is: u32 length of the header, the header (JSON, UTF-8, padded with spaces), then the columns' bytes. Every
column starts at a multiple of 8, counted from the end of the header, so that the browser can lay a typed array over it.

    {"rows": 2, "columns": [
        {"name": "error_out", "type": "f64", "at": 0, "valid": 16},
        {"name": "verdict", "type": "text", "at": 24, "words": ["identical", "origin"]}], ...}

`valid` is the position of a byte per row that says whether there is a value: a null is not a NaN. A text column
is codes (i32) into `words`, -1 for null. All numbers are little-endian.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numscope.core.dtypes import AnyArray
from numscope.core.json_value import JsonObject
from numscope.core.report import plain

MEDIA_TYPE = "application/vnd.numscope.frame"
_TYPES = {"f8": "f64", "f4": "f32", "i4": "i32", "u1": "u8", "b1": "bool"}


@dataclass(frozen=True)
class Column:
    """One column of a frame: numbers, or codes into words."""

    name: str
    values: AnyArray
    valid: NDArray[np.bool_] | None = None
    words: list[str] | None = None


def encode(columns: Iterable[Column], extra: Mapping[str, object] | None = None) -> bytes:
    """Return the frame of these columns; `extra` goes into the header."""
    heads: list[dict[str, object]] = []
    parts: list[bytes] = []
    position = rows = 0

    def append(values: AnyArray) -> int:
        nonlocal position
        start = position
        raw = np.ascontiguousarray(values).tobytes()
        raw += b"\0" * (-len(raw) % 8)
        parts.append(raw)
        position += len(raw)
        return start

    for column in columns:
        values = column.values
        rows = len(values)
        if column.words is not None:
            head: dict[str, object] = {
                "name": column.name,
                "type": "text",
                "at": append(values.astype("<i4")),
                "words": column.words,
            }
        else:
            kind = f"{values.dtype.kind}{values.dtype.itemsize}"
            if kind not in _TYPES:  # counts beyond 2**31 fit a double exactly up to 2**53
                values, kind = values.astype("<f8"), "f8"
            head = {"name": column.name, "type": _TYPES[kind], "at": append(values)}
            if column.valid is not None and not column.valid.all():
                head["valid"] = append(column.valid.astype("u1"))
        heads.append(head)
    header = json.dumps(plain({"rows": rows, **(extra or {}), "columns": heads}), ensure_ascii=False).encode()
    header += b" " * (-(len(header) + 4) % 8)
    return len(header).to_bytes(4, "little") + header + b"".join(parts)


def decode(frame: bytes) -> tuple[JsonObject, dict[str, list[object]]]:
    """Return the header of a frame, and its columns as lists with None for null: for tests and scripts."""
    length = int.from_bytes(frame[:4], "little")
    header = json.loads(frame[4 : 4 + length])
    body = memoryview(frame)[4 + length :]
    rows = header["rows"]
    types = {word: kind for kind, word in _TYPES.items()} | {"text": "i4"}
    columns: dict[str, list[object]] = {}
    for head in header["columns"]:
        values = np.frombuffer(body, np.dtype(f"<{types[head['type']]}"), rows, head["at"]).tolist()
        if "words" in head:
            values = [None if code < 0 else head["words"][code] for code in values]
        if "valid" in head:
            valid = np.frombuffer(body, "u1", rows, head["valid"])
            values = [value if ok else None for value, ok in zip(values, valid)]
        columns[head["name"]] = values
    return header, columns
