from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numscope.store.batch import record_batch


def low_and_high(values: np.ndarray, dtypes: list[str]) -> tuple[pa.Array, pa.Array]:
    rows = record_batch("tensors", {"dtype": dtypes, "sketch": values})
    return rows.column("sketch"), rows.column("sketch_low")


def test_a_missing_column_is_null() -> None:
    rows = record_batch("calls", {"order": [0, 1]})
    assert rows.column("name").null_count == 2


@pytest.mark.parametrize(
    "names",
    [
        ["a", "b", "a"],
        pa.array(["a", "b", "a"]),
        pa.DictionaryArray.from_arrays([0, 1, 0], ["a", "b"]),
        pa.chunked_array([["a"], ["b", "a"]]),
        np.array(["a", "b", "a"], dtype=object),
    ],
)
def test_strings_may_come_in_any_form(names: object) -> None:
    column = record_batch("calls", {"name": names}).column("name")
    assert column.type == pa.string()
    assert column.to_pylist() == ["a", "b", "a"]


def test_a_null_in_a_dictionary_array_stays_null() -> None:
    names = pa.DictionaryArray.from_arrays(pa.array([0, None]), pa.array(["a"]))
    assert record_batch("calls", {"name": names}).column("name").to_pylist() == ["a", None]


def test_statistics_of_no_finite_element_are_null_and_counts_are_not() -> None:
    rows = record_batch("tensors", {"min": np.array([np.nan, 1.0]), "nan": np.array([3, 0])})
    assert rows.column("min").to_pylist() == [None, 1.0]
    assert rows.column("nan").to_pylist() == [3, 0]


def test_columns_of_different_length_and_unknown_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="1 rows, the others 2"):
        record_batch("calls", {"order": [0, 1], "name": ["a"]})
    with pytest.raises(ValueError, match="no column 'nome'"):
        record_batch("calls", {"nome": ["a"]})


@given(st.lists(st.floats(-1e300, 1e300), min_size=64, max_size=64), st.sampled_from(["float64", "int64", "float32"]))
def test_a_wide_dtypes_sketch_comes_back_to_48_bits(values: list[float], dtype: str) -> None:
    exact = np.array([values])
    high, low = low_and_high(exact, [dtype])
    if dtype == "float32":
        assert low.null_count == 1
        return
    assert low.null_count == 0
    together = high.values.to_numpy().astype(np.float64) + np.frombuffer(low[0].as_py(), np.float32)
    small = np.abs(exact[0]) < 3e38
    assert np.all(np.abs(together - exact[0])[small] <= np.abs(exact[0])[small] * 2.0**-47 + 1e-44)
    assert np.all(np.isinf(together[np.abs(exact[0]) > 3.5e38]))  # unknown, never a wrong number


def test_a_row_without_sketch_is_nan_which_every_arrow_reads_back() -> None:
    values = np.zeros((3, 64))
    values[1] = np.nan
    high, low = low_and_high(values, ["float64", "float64", "float32"])
    assert high.null_count == 0
    assert np.isnan(high.values.to_numpy().reshape(3, 64)).all(axis=1).tolist() == [False, True, False]
    assert low.is_null().to_pylist() == [False, True, True]
