"""Inductor copies a buffer after it was updated, not before (pytorch issue 198131)."""

import torch
from torch import nn

from bench.zoo.models.training import parameter_norm
from bench.zoo.script import run
from bench.zoo.truth import Truth, compiled

OPTIONS = ("--compiled", "inside")
ORIGIN = Truth((compiled(),), ("device",))


class Drift(nn.Module):
    """Scales by how far the running mean is from what it was."""

    def __init__(self, width=8):
        super().__init__()
        self.register_buffer("mean", torch.ones(width))
        self.register_buffer("previous", torch.zeros(width))

    def forward(self, x):
        self.previous[:] = self.mean[:]  # origin
        self.mean.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
        return x * (1 + self.previous)


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), Drift(), nn.Linear(8, 3))
    step = torch.compile(model) if variant == "target" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for _ in range(3):
        loss = step(torch.randn(5, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return [*values, parameter_norm(model), model[1].previous.norm().item()]


if __name__ == "__main__":
    run(main)
