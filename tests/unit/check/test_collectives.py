"""A collective's results are held against what its ranks gave, by their fingerprints alone."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from numscope.check.collectives import _judge, _Member
from numscope.fingerprint.definition import fingerprint

Array = np.ndarray


def row(array: Array) -> dict[str, object]:
    one = fingerprint(array)
    names = ("elements", "nan", "posinf", "neginf", "zero", "min", "max", "mean", "l2", "hash", "sketch")
    values = {name: getattr(one, name)[0] for name in names}
    return {**values, "inf": 0, "dtype": "float32", "shape": list(array.shape)}


def members(name: str, given: list[list[Array]], made: list[list[Array]], operation: str = "SUM") -> list[_Member]:
    call = {
        "name": f"Distributed.{name}.0.forward",
        "arguments": json.dumps({"kwargs": {"group_size": len(given), "op": operation}}),
        "phase": "forward",
        "step": 0,
        "order": 3,
        "module": "",
        "source_file": None,
    }
    return [
        _Member(call, rank, [row(one) for one in given[rank]], [row(one) for one in made[rank]])
        for rank in range(len(given))
    ]


def tensors(count: int, size: int = 24) -> list[Array]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal(size).astype(np.float32) for _ in range(count)]


def summed(name: str, spoil: Callable[[Array], Array], operation: str = "SUM") -> list[_Member]:
    x = tensors(4)
    share = np.float32(0.5 if operation == "AVG" else 1)
    if name == "all_reduce":
        total = (x[0] + x[1]) * share
        return members(name, [[x[0]], [x[1]]], [[total], [spoil(total)]], operation)
    if name == "reduce_scatter":
        totals = (x[0] + x[2]) * share, (x[1] + x[3]) * share
        return members(name, [x[:2], x[2:]], [[totals[0]], [spoil(totals[1])]], operation)
    whole = (x[0] + x[1]) * share
    return members(name, [[x[0]], [x[1]]], [[whole[:12]], [spoil(whole[12:])]], operation)


@pytest.mark.parametrize("operation", ["SUM", "AVG"])
@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter", "reduce_scatter_tensor"])
def test_a_sum_that_is_not_the_ranks_sum_is_told(name: str, operation: str) -> None:
    assert _judge(summed(name, lambda x: x, operation)) is None
    told = _judge(summed(name, lambda x: x + np.float32(0.1), operation))
    assert told is not None
    assert told.origin.kind == "collective"


def test_the_part_that_is_missing_is_named() -> None:
    x = tensors(4)
    told = _judge(members("reduce_scatter", [x[:2], x[2:]], [[x[0] + x[2]], [x[1]]]))
    assert told is not None
    assert (told.origin.rank, "the part of rank 1 is missing" in told.origin.reason) == (1, True)


def test_what_is_gathered_is_what_the_ranks_sent() -> None:
    x, y = tensors(2)
    whole = np.concatenate([x, y])
    assert _judge(members("all_gather_into_tensor", [[x], [y]], [[whole], [whole]])) is None
    told = _judge(members("all_gather_into_tensor", [[x], [y]], [[whole], [np.concatenate([x, x])]]))
    assert told is not None
    assert told.origin.rank == 1
