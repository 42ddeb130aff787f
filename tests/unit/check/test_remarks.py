"""Remarks on what any training does: a step changes what it trains, and replicas stay equal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import numscope as ns
from numscope.__main__ import main
from numscope.check.remarks import remarks


def train(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, seed: int = 0, steps: int = 2) -> None:
    with ns.capture(path, model, on_error="raise") as cap:
        for step in range(steps):
            torch.manual_seed(100 * seed + step)
            x = torch.randn(4, 3, dtype=next(model.parameters()).dtype)
            optimizer.zero_grad()
            model(x).float().pow(2).sum().backward()
            optimizer.step()
            cap.step()


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)).to(dtype)


def test_a_training_that_is_right_has_no_remark(tmp_path: Path) -> None:
    net = model()
    train(tmp_path / "run", net, torch.optim.AdamW(net.parameters(), 1e-3))
    assert remarks(ns.open_run(tmp_path / "run")) == []


def test_an_update_that_rounding_swallows_is_remarked_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = model(torch.bfloat16)
    train(tmp_path / "run", net, torch.optim.Adam(net.parameters(), 1e-4))
    (remark,) = remarks(ns.open_run(tmp_path / "run"))
    assert (remark.rule, remark.step) == ("unchanged", 0)
    assert "1.weight" in remark.parameters  # of ones, whose neighbours are 0.004 away
    assert "1.bias" not in remark.parameters  # of zeros
    assert main(["check", str(tmp_path / "run"), "--json", str(tmp_path / "c.json")]) == 0
    assert "lost in rounding" in " ".join(capsys.readouterr().out.split())
    assert json.loads((tmp_path / "c.json").read_text())["remarks"][0]["rule"] == "unchanged"


def test_a_group_with_no_learning_rate_is_remarked_on_and_a_frozen_parameter_is_not(tmp_path: Path) -> None:
    net = model()
    net[1].requires_grad_(False)
    groups = [{"params": net[0].parameters(), "lr": 0.1}, {"params": net[2].parameters(), "lr": 0.0}]
    train(tmp_path / "run", net, torch.optim.SGD(groups))
    (remark,) = remarks(ns.open_run(tmp_path / "run"))
    assert remark.parameters == ["2.bias", "2.weight"]


@pytest.mark.parametrize("averaged", [True, False])
def test_replicas_that_part_are_remarked_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, averaged: bool) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        net = model()
        train(tmp_path / "run", net, torch.optim.SGD(net.parameters(), 0.1), seed=0 if averaged else rank)
    found = remarks(ns.open_run(tmp_path / "run"))
    assert [(remark.rule, remark.step, remark.ranks) for remark in found] == (
        [] if averaged else [("replicas", 0, [0, 1])]
    )


@pytest.mark.parametrize("rates", [(0.1, 0.1), (0.1, 0.2)])
def test_a_remark_on_replicas_says_whether_gradients_or_updates_part_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rates: tuple[float, float]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    same_rates = rates[0] == rates[1]
    for rank, rate in enumerate(rates):
        monkeypatch.setenv("RANK", str(rank))
        net = model()
        train(tmp_path / "run", net, torch.optim.SGD(net.parameters(), rate), seed=rank if same_rates else 0)
    (remark,) = remarks(ns.open_run(tmp_path / "run"))
    words = "each rank holds a part" if same_rates else "lr is 0.1 on rank 0, 0.2 on rank 1"
    assert words in remark.text


def test_shards_that_are_equal_by_chance_are_no_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        torch.manual_seed(rank)
        net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))  # ones and zeros on both
        train(tmp_path / "run", net, torch.optim.SGD(net.parameters(), 0.1), seed=rank)
    assert remarks(ns.open_run(tmp_path / "run")) == []
