"""Two small real runs and what the viewer makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import numscope as ns
from numscope.view.session import Session


class Net(nn.Module):
    def __init__(self, layers: int, slope: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(layers))
        self.slope = slope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.layers):
            x = nn.functional.leaky_relu(layer(x), self.slope if i == 1 else 0.01)
        return x


def capture(path: Path, slope: float, keep: str = "tensors", scale: float = 1.0, layers: int = 3) -> None:
    torch.manual_seed(0)
    model = Net(layers, slope)
    with ns.capture(str(path), model, keep=keep) as session:
        for step in range(2):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
            (torch.exp(model(x) * scale) if scale > 1 else model(x)).sum().backward()
            session.step()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view")
    capture(folder / "target", 0.2)
    capture(folder / "reference", 0.01)
    capture(folder / "large", 0.01, keep="stats", scale=1e4)
    return folder


@pytest.fixture(scope="session")
def compared(folder: Path) -> Session:
    return Session.of_comparison(ns.compare(folder / "target", folder / "reference"))


@pytest.fixture(scope="session")
def alone(folder: Path) -> Session:
    return Session.of_run(ns.open_run(folder / "large"))
