"""The net of msprobe's document, as both sides of test_msprobe run it."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    """Two linears and a relu."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(8, 4)
        self.linear_2 = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.linear_2(self.linear_1(x)))
