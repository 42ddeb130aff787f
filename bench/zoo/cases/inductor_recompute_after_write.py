"""A compiled backward computes a buffer's update again, from the buffer that was updated (pytorch pull request 197039)."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.models.training import parameter_norm
from bench.zoo.script import run
from bench.zoo.truth import Truth, compiled

OPTIONS = ("--compiled", "inside")
ORIGIN = Truth((compiled(),), ("device",))


class Memory(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.register_buffer("memory", torch.ones(width))

    def forward(self, x):
        self.memory.mul_(0.5).add_(x.detach().mean(0))  # origin
        return F.silu(x + self.memory)  # origin


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), Memory(), nn.Linear(8, 3))
    step = torch.compile(model) if variant == "target" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for _ in range(3):
        loss = step(torch.randn(5, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return [*values, parameter_norm(model)]


if __name__ == "__main__":
    run(main)
