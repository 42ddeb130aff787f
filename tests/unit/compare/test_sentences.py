"""The sentences of an answer say what its tables say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from numscope.compare.comparison import compare
from numscope.report.terminal.comparison import text
from tests.unit.compare.scripted import Script, numbers
from tests.unit.compare.test_judge import chain


@pytest.mark.parametrize("keep", [True, False], ids=["tensors", "stats"])
def test_the_largest_difference_is_the_tables_largest(tmp_path: Path, keep: bool) -> None:
    found = compare(chain(noise=True).write(tmp_path / "a", keep), chain().write(tmp_path / "b", keep))
    assert found.verdict == "equivalent"
    largest = max(row["relative_l2"] for row in found.pairs.to_pylist() if row["relative_l2"] is not None)
    assert f"(the largest: {largest:.2g})" in found.report.reason
    shown = text(found)
    first = next(line for line in shown.splitlines() if "equivalent" in line and "output" in line)
    assert f"{largest:.3g}" in first.replace("~", "")


def test_a_result_that_is_nothing_but_rounding_cannot_be_judged_and_the_table_says_so(tmp_path: Path) -> None:
    """The sentence counts it apart: its error is no measure of what rounding explains elsewhere."""

    def script(noise: int) -> Script:
        made, x = Script(), numbers((32, 64))
        made.call("Data.Net.0.input", made={"output.0": x})
        y = x * (1 + np.float32(3e-8) * numbers((32, 64), seed=noise)) if noise else x
        y = y.astype(np.float32)
        made.call("Torch.tanh.0.forward", {"input.0": x}, {"output.0": y})
        made.call("Torch.sub.0.forward", {"input.0": y, "input.1": x}, {"output.0": y - x + np.float32(1e-9)})
        return made

    found = compare(script(5).write(tmp_path / "a", True), script(6).write(tmp_path / "b", True))
    assert found.verdict == "equivalent", found.report.reason
    row = next(row for row in found.pairs.to_pylist() if row["target_name"] == "Torch.sub.0.forward.output.0")
    assert row["relative_l2"] > 0.5
    assert row["reason"] == "cannot be judged: rounding may be as large as the result"
    assert "pairs of tensors are further apart, each for the reason beside it" in found.report.reason
