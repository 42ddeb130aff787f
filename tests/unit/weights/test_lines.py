"""The fingerprints of lines, and the orders that are read from them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numscope as ns
from numscope.fingerprint import definition
from numscope.weights.matching.lines import exact_order, filled
from numscope.weights.summary import columns_of, rows_of, summarise
from numscope.weights.tensor import of_array

DTYPES = [np.dtype(name) for name in ("float32", "float16", "float64", "int8", "int32")]
DTYPES += [np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)]


def numbers(rows: int, columns: int, seed: int, dtype: np.dtype = DTYPES[0]) -> np.ndarray:
    return (10 * np.random.default_rng(seed).normal(size=(rows, columns))).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_column_is_a_row_of_the_transposed_matrix(dtype: np.dtype) -> None:
    array = numbers(70, 33, 0, dtype)
    down, across = columns_of(of_array("x", array), dtype), rows_of(of_array("x", array.T.copy()), dtype)
    np.testing.assert_array_equal(down.hash, across.hash)
    np.testing.assert_allclose(down.sums, across.sums, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(down.norm, across.norm, rtol=1e-5)
    assert len(set(down.hash.tolist())) == 33


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 19), st.integers(0, 12), st.integers(0, 31))
def test_every_bit_changes_the_hash_of_its_line_alone(row: int, column: int, bit: int) -> None:
    array = numbers(20, 13, 1)
    other = array.copy()
    other.view(np.uint32)[row, column] ^= np.uint32(1 << bit)
    for measure, place in ((rows_of, row), (columns_of, column)):
        before, after = (measure(of_array("x", one), array.dtype).hash for one in (array, other))
        assert np.flatnonzero(before != after).tolist() == [place]


def test_a_summary_is_the_fingerprint_of_the_definition() -> None:
    array = numbers(300, 1000, 2)
    found, expected = summarise(of_array("x", array)), definition.fingerprint(array)
    assert found.hash == int(expected.hash[0])
    assert found.l2 == pytest.approx(float(expected.l2[0]), rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(12)))
def test_any_order_of_distinct_lines_is_read_back(order: list[int]) -> None:
    a = numbers(12, 5, 3)
    hashes = rows_of(of_array("x", a), a.dtype).hash
    assert exact_order(hashes, hashes[order]).tolist() == order


def test_lines_that_are_alike_stay_in_their_runs() -> None:
    a = np.array([5, 0, 0, 7, 0, 0, 9], np.uint64)
    assert exact_order(a, a).tolist() == list(range(7))
    assert exact_order(a, np.concatenate([a[3:], a[:3]])).tolist() == [3, 4, 5, 6, 0, 1, 2]


def test_a_gap_is_closed_where_its_neighbours_say_how() -> None:
    assert filled(np.array([0, -1, -1, 3]), 4).tolist() == [0, 1, 2, 3]
    assert filled(np.array([2, 3, -1, -1]), 4).tolist() == [2, 3, -1, -1]


@settings(max_examples=25, deadline=None)
@given(
    heads=st.sampled_from([2, 4]),
    groups=st.sampled_from([1, 2]),
    layers=st.integers(1, 3),
    layout=st.sampled_from(["fused", "groups", "transposed", "stacked", "rotary"]),
    cast=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_conversion_of_random_weights_is_found_and_is_no_fault(
    heads: int, groups: int, layers: int, layout: str, cast: bool, seed: int
) -> None:
    hidden, head = 24, 8
    b = {
        f"layers.{n}.self_attn.{part}_proj.weight": numbers(
            head * (heads if part == "q" else groups), hidden, seed + 7 * n + i
        )
        for n in range(layers)
        for i, part in enumerate("qkv")
    }
    a: dict[str, np.ndarray] = {}
    for n in range(layers):
        parts = [b[f"layers.{n}.self_attn.{part}_proj.weight"] for part in "qkv"]
        if layout == "groups":
            parts = [np.concatenate([part.reshape(groups, -1, hidden) for part in parts], 1).reshape(-1, hidden)]
        if layout in ("fused", "groups", "stacked"):
            a[f"decoder.layers.{n}.self_attention.linear_qkv.weight"] = np.concatenate(parts)
        elif layout == "transposed":
            a |= {f"h.{n}.attn.{name}.kernel": part.T for name, part in zip(("q_proj", "k_proj", "v_proj"), parts)}
        else:
            turned = [part.reshape(-1, 2, head // 2, hidden).swapaxes(1, 2).reshape(part.shape) for part in parts[:2]]
            a |= {
                f"layers.{n}.attention.{name}.weight": part
                for name, part in zip(("wq", "wk", "wv"), [*turned, parts[2]])
            }
    if layout == "stacked":
        a = {"decoder.layers.self_attention.linear_qkv.weight": np.stack(list(a.values()))}
    a = {name: np.ascontiguousarray(value.astype(ml_dtypes.bfloat16) if cast else value) for name, value in a.items()}
    answer = ns.weights(a, b)
    assert answer.verdict == ("equivalent" if cast else "identical"), answer.reason
    assert not answer.missing
    assert not answer.extra
