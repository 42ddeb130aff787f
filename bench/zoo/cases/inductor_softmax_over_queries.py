"""Inductor turns a softmax over the queries, as slots have it, into one over the keys (pytorch issue 196468)."""

import torch
from torch import nn

from bench.zoo.models.training import parameter_norm
from bench.zoo.script import run
from bench.zoo.truth import Truth, compiled

OPTIONS = ("--compiled", "inside")
ORIGIN = Truth((compiled(),), ("device",))


class Slots(nn.Module):
    def __init__(self, width=16, heads=2, slots=3):
        super().__init__()
        self.heads = heads
        self.slots = nn.Parameter(torch.linspace(-1, 1, slots * width).view(1, slots, width).sin())
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        q, k, v = self.split(self.q(self.slots.expand(len(x), -1, -1))), self.split(self.k(x)), self.split(self.v(x))
        weights = torch.matmul(q, k.transpose(-2, -1)).div(2.0).softmax(dim=-2)  # origin
        return weights.matmul(v).transpose(1, 2).flatten(2)  # origin

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), Slots(), nn.Linear(16, 4))
    step = torch.compile(model) if variant == "target" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for _ in range(2):
        loss = step(torch.randn(4, 5, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return [*values, parameter_norm(model)]


if __name__ == "__main__":
    run(main)
