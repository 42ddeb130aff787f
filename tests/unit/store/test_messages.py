"""A message that repeats the one before is the one that would have been made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numscope.store.batch import record_batch
from numscope.store.schema import TABLES
from numscope.store.writing.messages import Message, Messages

DTYPES = pa.array(["float32", "int64", "float64"])
FLOATS = st.floats(width=64)


def read(table: str, message: Message) -> pa.RecordBatch:
    batch = pa.ipc.read_record_batch(pa.py_buffer(bytes(message.content)), TABLES[table])
    batch.validate(full=True)
    assert batch.num_rows == message.rows
    return batch


def are_same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Tell whether two batches are the same; a NaN is the same as a NaN."""
    return all(map(is_same, one.columns, other.columns))


def is_same(one: pa.Array, other: pa.Array) -> bool:
    if pa.types.is_fixed_size_list(one.type):
        one, other = one.values, other.values
    if not pa.types.is_floating(one.type):
        return bool(one.equals(other))
    return one.is_null().equals(other.is_null()) and bool(
        np.array_equal(one.to_numpy(zero_copy_only=False), other.to_numpy(zero_copy_only=False), equal_nan=True)
    )


def tensors(step: int, least: list[float], sketch: list[float], dtype: pa.Array = DTYPES) -> dict[str, Any]:
    return {
        "step": np.full(3, step, np.int32),
        "tensor": np.arange(3, dtype=np.int32) + step,
        "dtype": dtype,
        "min": np.array(least),
        "hash": np.array([1, 2, 2**64 - 1 - step], np.uint64),
        "sketch": np.repeat(np.array(sketch), 64).reshape(3, 64),
    }


@given(st.lists(st.tuples(*[st.lists(FLOATS, min_size=3, max_size=3)] * 2), min_size=1, max_size=6))
def test_each_of_a_tables_messages_says_what_its_batch_says(batches: list[tuple[list[float], list[float]]]) -> None:
    messages = Messages("tensors")
    for step, (least, sketch) in enumerate(batches):
        for _ in range(3):
            columns = tensors(step, least, sketch)
            assert are_same(read("tensors", messages.of(columns, at_once=True)), record_batch("tensors", columns))


def test_the_third_batch_of_a_form_is_written_into_the_seconds_bytes() -> None:
    messages = Messages("calls")
    order = pa.array([4, 5], pa.int32())
    contents = []
    for step in range(4):
        message = messages.of({"step": np.full(2, step, np.int32), "order": order}, at_once=True)
        contents.append(message.content)
        assert read("calls", message).column("step").to_pylist() == [step, step]
    assert contents[2] is contents[3]


@pytest.mark.parametrize(
    "other",
    [
        {"order": pa.array([4, 6], pa.int32())},
        {"order": pa.array([4, 5, 6], pa.int32()), "step": np.zeros(3, np.int32)},
        {"name": pa.array(["a", "b"])},
        {"step": np.zeros(2, np.int64)},
        {"step": [0, 0]},
        {"thread": np.zeros(2, np.int32)},
        {"recompute": np.array([True, False])},
    ],
)
def test_a_batch_of_another_form_is_made_anew(other: dict[str, Any]) -> None:
    messages = Messages("calls")
    usual = {"step": np.ones(2, np.int32), "order": pa.array([4, 5], pa.int32())}
    for columns in (usual, usual, usual, {**usual, **other}, {**usual, **other}, {**usual, **other}, usual):
        assert read("calls", messages.of(columns, at_once=True)).equals(record_batch("calls", columns))


def test_another_dtype_has_another_low_part() -> None:
    messages = Messages("tensors")
    for dtype in (DTYPES, DTYPES, DTYPES, pa.array(["float64", "float32", "int64"]), DTYPES):
        columns = tensors(0, [1.0, 2.0, 3.0], [0.1, 0.2, 0.3], dtype)
        assert are_same(read("tensors", messages.of(columns, at_once=True)), record_batch("tensors", columns))


def test_a_message_that_waits_is_not_written_over() -> None:
    messages = Messages("calls")
    order = pa.array([4, 5], pa.int32())
    made = [messages.of({"step": np.full(2, step, np.int32), "order": order}, at_once=step < 4) for step in range(8)]
    assert [read("calls", message).column("step")[0].as_py() for message in made[3:]] == [3, 4, 5, 6, 7]
