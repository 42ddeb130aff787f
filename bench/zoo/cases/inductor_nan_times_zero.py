"""Inductor makes 0 of an infinity times 0, which hides a mask that takes away all (pytorch pull request 187580)."""

import torch
from torch import nn

from bench.zoo.models.training import parameter_norm
from bench.zoo.script import run
from bench.zoo.truth import Truth, compiled

OPTIONS = ("--compiled", "inside")
ORIGIN = Truth((compiled(),), ("device",))


class Gate(nn.Module):
    weight_of_penalty = 0

    def __init__(self, width=8):
        super().__init__()
        self.score = nn.Linear(width, width)

    def forward(self, x):
        scores = self.score(x).masked_fill(x > 0, -torch.inf)
        return x + scores * self.weight_of_penalty  # origin


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), Gate(), nn.Linear(8, 3))
    step = torch.compile(model) if variant == "target" else model
    values = []
    for _ in range(2):
        with torch.no_grad():
            values.append(step(torch.randn(5, 6)).square().mean().item())
    return [*values, parameter_norm(model)]


if __name__ == "__main__":
    run(main)
