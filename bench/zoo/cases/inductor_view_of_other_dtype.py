"""Inductor reads a view of another dtype after its base was written to, not before (pytorch issue 198101)."""

import torch
from torch import nn

from bench.zoo.models.training import parameter_norm
from bench.zoo.script import run
from bench.zoo.truth import Truth, compiled

OPTIONS = ("--compiled", "inside")
ORIGIN = Truth((compiled(),), ("device",))


class Packed(nn.Module):
    """Tokens that are kept two in a number, and the state that is reset behind them."""

    def __init__(self, width=8):
        super().__init__()
        self.table = nn.Embedding(64, width)
        self.register_buffer("state", torch.arange(24).view(4, 6) * (2**32 + 1))

    def forward(self, x):
        tokens = self.state.view(torch.int32) * 2  # origin
        tokens.sub_(-4)
        self.state[:, 2:5] = 2  # origin
        return x + self.table(tokens.view(torch.int64) & 63).mean((0, 1))


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), Packed(), nn.Linear(8, 3))
    step = torch.compile(model) if variant == "target" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for _ in range(2):
        loss = step(torch.randn(5, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return [*values, parameter_norm(model)]


if __name__ == "__main__":
    run(main)
