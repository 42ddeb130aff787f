"""The backward of a product that autocast is off for is made in bfloat16 where it is compiled (pytorch issue 179804)."""

import torch
from torch import nn

from bench.zoo.models.training import parameter_norm
from bench.zoo.script import run
from bench.zoo.truth import Truth, compiled

OPTIONS = ("--compiled", "inside")
ORIGIN = Truth((compiled(),), ("device", "precision"))


class Exact(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return x.float() @ self.weight.float().T  # origin


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), Exact(), nn.Linear(32, 4))
    if variant == "target":
        model[1] = torch.compile(model[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(16, 32)).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return [*values, parameter_norm(model)]


if __name__ == "__main__":
    run(main)
