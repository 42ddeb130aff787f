"""Pieces that ranks hold make the whole tensor, as libraries declare it."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numscope.store.whole import Piece, declares_parts, of_parameter, whole


def placement(shape: tuple[int, ...], mesh: tuple[int, ...], at: tuple[int, ...], ways: tuple[str, ...]) -> str:
    return json.dumps({"shape": shape, "mesh": mesh, "coordinate": at, "placements": ways})


def chunk(array: np.ndarray, parts: int, number: int, axis: int) -> np.ndarray:
    """Return a part as torch.chunk cuts it: the first ones are equally long, the last may be shorter or empty."""
    each = -(-array.shape[axis] // parts)
    begin = min(array.shape[axis], each * number)
    return array.take(range(begin, min(array.shape[axis], begin + each)), axis)


@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    mesh=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    ways=st.tuples(st.sampled_from(["R", "S(0)", "S(1)"]), st.sampled_from(["R", "S(0)", "S(1)"])),
)
def test_shards_and_replicas_of_a_mesh_make_the_whole(
    rows: int, columns: int, mesh: tuple[int, int], ways: tuple[str, str]
) -> None:
    full = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    pieces = []
    for rank, at in enumerate(product(*map(range, mesh))):
        piece = full
        for parts, number, way in zip(mesh, at, ways):
            piece = piece if way == "R" else chunk(piece, parts, number, int(way[2]))
        pieces.append(Piece(rank, piece, placement(full.shape, mesh, at, ways), None))
    np.testing.assert_array_equal(whole(pieces), full)


def test_a_strided_shard_cuts_what_the_other_axis_has_left() -> None:
    full = np.arange(16.0).reshape(8, 2)
    pieces = []
    for rank, (data, tensor) in enumerate(product(range(2), range(2))):
        piece = chunk(chunk(full, 2, tensor, 0), 2, data, 0)
        pieces.append(Piece(rank, piece, placement((8, 2), (2, 2), (data, tensor), ("_S(0, 2)", "S(0)")), None))
    np.testing.assert_array_equal(whole(pieces), full)


@pytest.mark.parametrize(("way", "expected"), [("P(sum)", 3.0), ("P(avg)", 1.5)])
def test_partial_sums_are_added(way: str, expected: float) -> None:
    pieces = [Piece(rank, np.full(4, rank + 1.0), placement((4,), (2,), (rank,), (way,)), None) for rank in (0, 1)]
    np.testing.assert_array_equal(whole(pieces), np.full(4, expected))


def test_a_piece_that_lacks_makes_no_whole() -> None:
    pieces = [Piece(0, np.zeros(2), placement((4,), (2,), (0,), ("S(0)",)), None)]
    assert whole(pieces) is None
    assert whole([Piece(0, np.zeros(2), "", {"dimension": 0, "ranks": [0, 1]})]) is None


def test_blocks_of_several_tensors_beside_each_other_are_sorted() -> None:
    full = np.arange(12.0)  # three tensors of four elements, of each of which a rank has a half
    halves = [np.concatenate([block.reshape(2, 2)[rank] for block in full.reshape(3, 4)]) for rank in (0, 1)]
    pieces = [Piece(rank, half, "", {"dimension": 0, "stride": 3, "ranks": [0, 1]}) for rank, half in enumerate(halves)]
    np.testing.assert_array_equal(whole(pieces), full)


def test_what_is_declared_of_a_parameter_holds_for_its_gradient_and_state() -> None:
    declared = {"up.weight": {"dimension": 0}}
    for call, slot in [
        ("Optimizer.AdamW.step.0", "parameters_grad.up.weight"),
        ("Optimizer.AdamW.step.0", "state.up.weight.exp_avg"),
        ("Module.up.Linear.forward.0", "parameters.weight"),
        ("Optimizer.AdamW.step.0", "output._fsdp_wrapped_module.up.weight"),
    ]:
        assert declares_parts("", of_parameter(call, slot, declared)), (call, slot)
    assert of_parameter("Functional.linear.0.forward", "output.0", declared) is None
