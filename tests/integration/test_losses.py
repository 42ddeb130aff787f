"""The losses that a report tells are those that the jobs printed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import numscope as ns
from numscope.report.terminal.comparison import text


def train(run: Path, rate: float, steps: int = 3, parts: int = 1) -> list[float]:
    """Return the losses of a job, whose metric and weight decay are single numbers too."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), rate)
    told = []
    with ns.capture(run, model) as capture:
        for _ in range(steps):
            x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
            optimizer.zero_grad()
            for share in range(parts):
                out = model(x[share::parts])
                loss = torch.nn.functional.cross_entropy(out, y[share::parts])
                out.abs().mean()  # a metric, after the loss
                loss.backward()
                told += [loss.item()] if share == 0 else []
            optimizer.step()
            capture.step()
    return told


@pytest.mark.parametrize("parts", [1, 2])
def test_they_are_the_numbers_that_backward_begins_from(tmp_path: Path, parts: int) -> None:
    here = train(tmp_path / "target", 0.11, parts=parts)
    there = train(tmp_path / "reference", 0.1, parts=parts)
    known = ns.compare(tmp_path / "target", tmp_path / "reference").report.details["losses"]
    assert [one["step"] for one in known] == [0, 1, 2]
    assert [one["target"] for one in known] == pytest.approx(here, rel=1e-6)
    assert [one["reference"] for one in known] == pytest.approx(there, rel=1e-6)


def test_the_answer_begins_with_them(tmp_path: Path) -> None:
    (first, *_), _ = train(tmp_path / "target", 0.11), train(tmp_path / "reference", 0.1)
    told = text(ns.compare(tmp_path / "target", tmp_path / "reference"))
    assert f"target {first:.7g}" in told


def test_a_job_without_backward_has_none(tmp_path: Path) -> None:
    for name in ("target", "reference"):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        with ns.capture(tmp_path / name, model), torch.no_grad():
            model(torch.ones(2, 4)).sum()
    assert "losses" not in ns.compare(tmp_path / "target", tmp_path / "reference").report.details
