"""Columns that are taken over from the batch before are those that would have been made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from numscope.capture.recording.columns import AGAIN, Lasting, Tables
from numscope.capture.recording.interned import Shapes, Strings
from numscope.capture.recording.rows import CallRow, SlotRow, TensorRow
from numscope.fingerprint.columns import Fingerprints

_NUMBER = st.integers(-1, 9)
_CALL = st.lists(_NUMBER, min_size=len(CallRow._fields), max_size=len(CallRow._fields)).map(CallRow._make)
_SLOT = st.builds(SlotRow, st.integers(0, 1), st.integers(0, 1), st.integers(-1, 1), st.integers(-1, 1))


def new_tables() -> Tables:
    strings, shapes = Strings(), Shapes()
    for number in range(12):
        strings.id(f"text {number}")
        shapes.id((number, 2))
    return Tables(strings, shapes)


def plain(columns: Any) -> dict[str, list[Any]]:
    return {
        name: values.tolist() if isinstance(values, np.ndarray) else values.to_pylist()
        for name, values in columns.items()
    }


def flat(rows: Sequence[tuple[int, ...]]) -> list[int]:
    return [number for row in rows for number in row]


def prints(first: int, rows: int) -> Fingerprints:
    """Return fingerprints in which each number says whose it is."""
    floats = ("min", "max", "mean", "l2")
    names = [name for name in Fingerprints.__dataclass_fields__ if name not in ("hash", "sketch")]
    number = np.arange(first, first + rows)
    columns: dict[str, Any] = {
        name: (number * 100 + at).astype(np.float64 if name in floats else np.int64) for at, name in enumerate(names)
    }
    sketch = np.repeat(number.astype(np.float64), 64).reshape(rows, 64)
    return Fingerprints(**columns, hash=(number * 100 + 99).astype(np.uint64), sketch=sketch)


@given(st.lists(st.tuples(st.lists(_CALL, max_size=2), st.lists(_SLOT, max_size=2)), max_size=6))
def test_every_batch_is_what_it_would_be_without_those_before_it(
    batches: list[tuple[list[tuple[int, ...]], list[tuple[int, ...]]]],
) -> None:
    tables = new_tables()
    for step, (calls, slots) in enumerate(batches):
        for repeated in range(2):
            made = (
                plain(tables.calls(step + repeated, 0, flat(calls))),
                plain(tables.slots(step + repeated, 0, flat(slots))),
            )
            fresh = new_tables()
            assert made[0] == plain(fresh.calls(step + repeated, 0, flat(calls)))
            assert made[1] == plain(fresh.slots(step + repeated, 0, flat(slots)))


def test_a_batch_like_the_one_before_has_the_same_columns_but_for_its_step() -> None:
    tables = new_tables()
    row = CallRow(0, 1, 2, 3, 4, 5, arguments=6, stack=0)
    first, second = tables.calls(0, 0, list(row)), tables.calls(1, 0, list(row))
    assert second["step"].tolist() == [1]
    assert all(second[name] is first[name] for name in first if name != "step")
    third = tables.calls(2, 0, list(row._replace(arguments=7)))
    assert third["arguments"].to_pylist() == ["text 6"]
    assert [name for name in third if third[name] is not second[name]] == ["step", "arguments"]


def test_a_step_of_several_batches_repeats_each_of_them() -> None:
    tables = new_tables()
    steps = [[tables.slots(step, part, list(SlotRow(part, 1, 2))) for part in range(9)] for step in range(2)]
    for part in range(9):
        assert steps[0][part]["call"].to_pylist() == steps[1][part]["call"].to_pylist() == [part]
        assert (steps[0][part]["call"] is steps[1][part]["call"]) == (part < 6)


def test_a_row_that_came_after_its_batch_was_made_does_not_pass_for_one_of_it() -> None:
    tables = new_tables()
    rows = list(SlotRow(0, 1, 2))
    assert len(tables.slots(0, 0, rows)["call"]) == 1
    rows.extend(SlotRow(1, 1, 2))  # a thread had the list in its hands when it was handed over
    assert tables.slots(1, 0, list(rows))["call"].to_pylist() == [0, 1]


def test_a_text_that_is_new_in_a_later_batch_is_found() -> None:
    strings = Strings()
    tables = Tables(strings, Shapes())
    for text in ("first", "second"):
        assert tables.slots(0, 0, list(SlotRow(0, strings.id(text), 0)))["slot"].to_pylist() == [text]


def test_no_row_at_all_makes_empty_columns_of_the_right_type() -> None:
    tables = new_tables()
    assert all(len(values) == 0 for values in tables.calls(0, 0, []).values())
    assert tables.slots(0, 0, [])["slot"].type == pa.string()


def test_fingerprints_of_earlier_steps_stand_beside_those_of_this_one() -> None:
    tables = new_tables()
    left = [(number, Lasting()) for number in (2, 0)]
    tables.tensors(0, 0, flat([TensorRow(n, 1, 0, 2, n) for n in range(3)]), prints(10, 3), lasting=left)
    later = [(0, Lasting())]
    tables.tensors(1, 0, list(TensorRow(0, 1, 0, 2, 0)), prints(20, 1), lasting=later)
    again = [left[0][1], later[0][1], left[1][1]]
    rows = [TensorRow(number, 1, 0, 2, row) for number, row in enumerate([AGAIN, 0, AGAIN - 1, AGAIN - 2])]
    found = tables.tensors(2, 0, flat(rows), prints(30, 1), again)
    assert found["elements"].tolist() == [1200, 3000, 2000, 1000]
    assert found["hash"].tolist() == [1299, 3099, 2099, 1099]
    assert found["sketch"][:, 0].tolist() == found["sketch"][:, 63].tolist() == [12, 30, 20, 10]
    none_here = tables.tensors(3, 0, list(TensorRow(0, 1, 0, 2, AGAIN)), prints(0, 0), again[:1])
    assert none_here["mean"].tolist() == [1207]
