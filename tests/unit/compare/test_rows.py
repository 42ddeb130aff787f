"""Rows of a comparison: the same whether they are in memory or in a file."""

from __future__ import annotations

import pyarrow as pa
import pytest

from numscope.compare.parts.rows import Rows

SCHEMA = pa.schema([("number", pa.int32()), ("word", pa.string()), ("value", pa.float64())])


def part(begin: int, count: int) -> pa.Table:
    numbers = list(range(begin, begin + count))
    values = [None if number % 3 == 0 else number / 2 for number in numbers]
    return pa.table([numbers, [f"w{number % 7}" for number in numbers], values], schema=SCHEMA)


def rows(in_memory: int) -> Rows:
    found = Rows(SCHEMA, in_memory)
    for begin in range(0, 1000, 100):
        found.add(part(begin, 100))
    found.end()
    return found


@pytest.mark.parametrize("in_memory", [0, 3000, 1 << 30])
def test_what_was_added_comes_back_in_order(in_memory: int) -> None:
    found = rows(in_memory)
    assert found.num_rows == 1000
    assert found.table().equals(part(0, 1000))
    assert pa.concat_tables(found.batches()).equals(part(0, 1000))


@pytest.mark.parametrize("in_memory", [0, 3000, 1 << 30])
def test_columns_and_single_rows_can_be_had_alone(in_memory: int) -> None:
    found = rows(in_memory)
    assert pa.concat_tables(found.batches(["value"])).equals(part(0, 1000).select(["value"]))
    assert found.take([999, 3, 512])["number"].to_pylist() == [999, 3, 512]
    assert found.take([]).num_rows == 0


def test_no_rows_are_an_empty_table_of_the_schema() -> None:
    found = Rows(SCHEMA)
    found.end()
    assert list(found.batches()) == []
    assert found.table().equals(SCHEMA.empty_table())


def test_a_table_in_memory_is_taken_as_it_is() -> None:
    table = part(0, 10)
    assert Rows.of(table).table() is table
