"""Faults of training rather than of a call: optimizers, gradients left over, memory written to, weights and data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns


class Net(nn.Module):
    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 16), nn.ReLU(inplace=in_place), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x)
        return self.down(self.act(h) + h)


Build = Callable[[], Net]


def train(
    path: Path,
    build: Build = Net,
    optimizer: Callable[..., Any] = torch.optim.SGD,
    zero: bool = True,
    data: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
    **settings: Any,
) -> None:
    torch.manual_seed(0)
    model = build()
    steps = optimizer(model.parameters(), lr=0.1, **settings)
    generator = torch.Generator().manual_seed(1)
    with ns.capture(path, model, keep="tensors", on_error="raise") as cap:
        for _ in range(2):
            if zero:
                steps.zero_grad()
            F.mse_loss(model(data(torch.randn(5, 8, generator=generator))), torch.zeros(5, 8)).backward()
            steps.step()
            cap.step()


def changed(change: Callable[[Net], None]) -> Build:
    def build() -> Net:
        model = Net()
        with torch.no_grad():
            change(model)
        return model

    return build


def swap(model: Net) -> None:
    model.up.weight[[3, 4]] = model.up.weight[[4, 3]]


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "another optimizer": (
        {"optimizer": torch.optim.Adam, "weight_decay": 0.1},
        {"optimizer": torch.optim.AdamW, "weight_decay": 0.1},
        "semantic",
        "AdamW in place of Adam: decoupled weight decay 0.1 (now it is added to the gradient)",
    ),
    "coupled weight decay": (
        {"optimizer": torch.optim.AdamW, "weight_decay": 0.1},
        {"optimizer": torch.optim.Adam, "weight_decay": 0.1},
        "semantic",
        "Adam in place of AdamW: weight decay 0.1 added to the gradient (now decoupled from it)",
    ),
    "a setting": ({"momentum": 0.8}, {"momentum": 0.9}, "semantic", "momentum=0.9 (now 0.8)"),
    "gradients left over": ({"zero": False}, {}, "input", "the gradients zeroed before this step (now those of step 0"),
    "gradients not accumulated": ({}, {"zero": False}, "input", "the gradients of step 0 kept and added to"),
    "written in place": ({"build": lambda: Net(in_place=True)}, {}, "semantic", "inplace=False (now it overwrites"),
    "rows exchanged": ({"build": changed(swap)}, {}, "parameter", "axis 0 of it permuted, as 0-2, 4, 3, 5-15"),
    "saved in bfloat16": (
        {"build": changed(lambda m: m.up.weight.copy_(m.up.weight.bfloat16().float()))},
        {},
        "parameter",
        "before they were rounded to bfloat16",
    ),
    "another gain": (
        {"build": changed(lambda m: m.up.weight.mul_(2))},
        {},
        "parameter",
        "a scale factor of 0.5 (1/2)",
    ),
    "data not normalised": (
        {},
        {"data": lambda x: torch.from_numpy((x.numpy() - 0.5) / 0.25)},
        "input",
        "(x - 0.5) / 0.25 along axis 0",
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_the_fault_is_told_with_its_repair(name: str, tmp_path: Path) -> None:
    target, reference, mechanism, repair = CASES[name]
    train(tmp_path / "target", **target)
    train(tmp_path / "reference", **reference)
    origin = ns.diagnose(tmp_path / "target", tmp_path / "reference").origin
    assert origin is not None
    assert origin.mechanism == mechanism, origin
    assert repair in (origin.repair or ""), origin


class Signed(torch.optim.SGD):
    """An optimizer of the job's own that steps by the gradient's sign, or by its square root."""

    root = False

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    update = p.grad.sign() * (p.grad.abs().sqrt() if self.root else 1.0)
                    p.sub_(group["lr"] * update)


def test_an_optimizer_of_the_jobs_own_that_computes_otherwise_is_semantic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "reference", optimizer=Signed)
    monkeypatch.setattr(Signed, "root", True)
    train(tmp_path / "target", optimizer=Signed)
    origin = ns.diagnose(tmp_path / "target", tmp_path / "reference").origin
    assert origin is not None
    assert origin.kind == "optimizer"
    assert origin.mechanism == "semantic", origin
