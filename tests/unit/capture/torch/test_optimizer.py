"""The record of an optimizer's step, while the optimizer's parameters change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import numscope as ns


def slots(run: Path, step: int) -> list[str]:
    """Return the slots of the optimizer's call in a step, in their order."""
    opened = ns.open_run(run)
    tables = opened.step_tables(step, 0)
    orders = [
        order for order, kind in zip(*(tables.calls[c].to_pylist() for c in ("order", "kind"))) if kind == "optimizer"
    ]
    assert len(orders) == 1
    shown = zip(tables.slots["call"].to_pylist(), tables.slots["slot"].to_pylist())
    return [slot for call, slot in shown if call == orders[0]]


@pytest.mark.parametrize("level", ["module", "mix", "aten"])
def test_names_follow_the_groups_of_an_optimizer(tmp_path: Path, level: str) -> None:
    model = nn.Linear(2, 2)
    alone = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.SGD([model.weight, alone[0]], lr=0.1)
    with ns.capture(tmp_path / "run", model, level=level, keep="structure", on_error="raise") as cap:
        for step in range(4):
            if step == 1:
                optimizer.add_param_group({"params": [model.bias, alone[1]]})
            elif step == 2:
                optimizer.param_groups[1]["params"].reverse()
            elif step == 3:
                alone[0].requires_grad_(False)
                alone[0].grad = None
            (model(torch.ones(1, 2)).sum() + sum(one.sum() for one in alone if one.requires_grad)).backward()
            optimizer.step()
            cap.step()
    expected = [
        ["weight", "group0.1"],
        ["weight", "group0.1", "bias", "group1.1"],
        ["weight", "group0.1", "group1.0", "bias"],
        ["weight", "group1.0", "bias"],
    ]
    for step, labels in enumerate(expected):
        found = slots(tmp_path / "run", step)
        assert [slot for slot in found if slot.startswith("parameters.")] == [f"parameters.{one}" for one in labels]
        assert [slot for slot in found if slot.startswith("parameters_grad.")] == [
            f"parameters_grad.{one}" for one in labels
        ]
        assert [slot for slot in found if slot.startswith("output.")] == [f"output.{one}" for one in labels]


def test_a_parameter_that_gets_a_name_has_it_in_the_next_step(tmp_path: Path) -> None:
    known, later = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*known.parameters(), *later.parameters()], lr=0.1)
    with ns.capture(tmp_path / "run", known, keep="structure", on_error="raise") as cap:
        for step in range(2):
            for one in optimizer.param_groups[0]["params"]:
                one.grad = torch.ones_like(one)
            if step == 1:
                later(torch.ones(1, 2))
            optimizer.step()
            cap.step()
    assert "output.group0.2" in slots(tmp_path / "run", 0)
    assert "output.Linear1.weight" in slots(tmp_path / "run", 1)
