"""Inductor replaces a running sum of a constant by a ramp, and rounds only the ramp to integers (pytorch issue 189518)."""

import torch
from torch import nn

from bench.zoo.models.training import parameter_norm
from bench.zoo.script import run
from bench.zoo.truth import Truth, compiled

OPTIONS = ("--compiled", "inside")
ORIGIN = Truth((compiled(),), ("device",))


class Positions(nn.Module):
    """Positions that advance by a stride, in whole numbers."""

    def __init__(self, width=8, stride=1.6):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(-0.1, 0.1, width))
        self.stride = stride

    def forward(self, x):
        strides = torch.full((x.shape[0], x.shape[1]), self.stride)
        positions = torch.cumsum(strides, dim=1, dtype=torch.int64)  # origin
        return x + positions.unsqueeze(-1) * self.scale


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), Positions(), nn.Linear(8, 3))
    step = torch.compile(model) if variant == "target" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for _ in range(2):
        loss = step(torch.randn(2, 7, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return [*values, parameter_norm(model)]


if __name__ == "__main__":
    run(main)
