"""No verdict rests on a pair of calls that nothing but their order holds together."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from numscope.compare.comparison import compare
from tests.unit.compare.judge.tables import W, X, data
from tests.unit.compare.scripted import Script


def one(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def script(numbers: list[tuple[float, float]]) -> Script:
    """Additions of single numbers, of which nothing tells which is which, and a product that all of it leads to."""
    made = data(Script(), X)
    for index, (first, second) in enumerate(numbers):
        given = {"input.0": one(first), "input.1": one(second)}
        made.call(f"Torch.add.{index}.forward", given, {"output.0": one(first + second)})
    product = X @ W
    made.call("Torch.matmul.0.forward", {"input.0": X, "input.1": W}, {"output.0": product})
    return made


def test_calls_that_their_order_alone_pairs_are_no_origin(tmp_path: Path) -> None:
    target = script([(0, 24), (-8, 1)]).write(tmp_path / "target")
    found = compare(target, script([(-8, 1)]).write(tmp_path / "reference"))
    assert found.verdict == "equivalent"
    rows = [row for row in found.calls.to_pylist() if row["target_name"] and "add" in row["target_name"]]
    assert {row["confidence"] for row in rows if row["reference_name"]} <= {"doubtful", "certain"}
    assert all(row["verdict"] != "origin" for row in rows)


def test_what_calls_are_given_tells_which_belong_together(tmp_path: Path) -> None:
    """One more call of an operator makes the others no less certain where the same tensor leads into them."""

    def products(extra: bool, factor: float) -> Script:
        made = data(Script(), X)
        if extra:
            made.call("Torch.mul.0.forward", {"input.0": W}, {"output.0": W * np.float32(2)})
        number = int(extra)
        result = X * np.float32(factor)
        made.call(f"Torch.mul.{number}.forward", {"input.0": X}, {"output.0": result})
        made.call("Torch.tanh.0.forward", {"input.0": result}, {"output.0": np.tanh(result)})
        return made

    found = compare(products(True, 1.5).write(tmp_path / "a"), products(False, 1.0).write(tmp_path / "b"))
    assert found.origin is not None
    assert found.origin.call == "Torch.mul.1.forward"
    rows = {row["target_name"]: row["confidence"] for row in found.calls.to_pylist()}
    assert rows["Torch.mul.1.forward"] == "certain"
