"""Calls that one run alone has, and a NaN that follows from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import numscope as ns
from numscope.__main__ import main


class Block(nn.Module):
    def __init__(self, extra: bool, root: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.extra, self.root = extra, root

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.extra:
            y = torch.sin(y) * 1.01
        if self.root:
            y = torch.sqrt(y)
        return x + y


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    for name, wrong in (("target", True), ("reference", False)):
        torch.manual_seed(0)
        model = nn.Sequential(Block(wrong, False), Block(False, wrong))
        with ns.capture(tmp_path / name, model) as cap:
            for _ in range(2):
                model(torch.randn(4, 8)).pow(2).mean().backward()
                cap.step()
    return str(tmp_path / "target"), str(tmp_path / "reference")


def test_a_nan_on_one_side_alone_is_never_called_rounding(runs: tuple[str, str]) -> None:
    rows = ns.compare(*runs).calls.to_pylist()
    wrong = [row["target_name"] for row in rows if row["error_out"] == float("inf") and row["verdict"] == "equivalent"]
    assert any(row["error_out"] == float("inf") for row in rows)
    assert wrong == []


def test_only_unmatched_lists_the_calls_that_one_run_alone_has(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *runs, "--only", "unmatched", "--top", "3"]) == 1
    told = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  only in the")]
    assert [line[3] for line in told] == ["target"] * 3
    assert told[0][4:7] == ["Torch.sin.0.forward,", "step", "0"]
    assert main(["compare", *reversed(runs), "--only", "unmatched", "--top", "1"]) == 1
    assert "  only in the reference  Torch.sin.0.forward, step 0" in capsys.readouterr().out


def test_pairs_of_several_steps_are_told_apart(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", *runs, "--only", "inherited", "--sort", "name", "--top", "2"])
    lines = capsys.readouterr().out.splitlines()
    table = lines[next(place for place, line in enumerate(lines) if line.startswith("  pairs ")) + 1 :]
    assert [line.strip() for line in table if line.strip().startswith("step ")] == ["step 0", "step 1"]
    names = [line.split()[0] for line in table if ".forward." in line or ".backward." in line]
    assert len(names) == 2
    assert names[0] == names[1]
