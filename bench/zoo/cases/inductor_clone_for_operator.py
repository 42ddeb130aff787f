"""Inductor gives an operator of the job's the tensor that it writes to in place of a copy (pytorch issue 198031)."""

import torch
from torch import nn

from bench.zoo.models.training import parameter_norm
from bench.zoo.script import run
from bench.zoo.truth import Truth, compiled

OPTIONS = ("--compiled", "inside")
ORIGIN = Truth((compiled(),), ("device",))


@torch.library.custom_op("zoo::reverse_into", mutates_args=("target",))
def reverse_into(source: torch.Tensor, target: torch.Tensor) -> None:
    for row in range(len(source)):
        target[len(source) - 1 - row] = source[row]


class Mirror(nn.Module):
    def __init__(self, length=6, width=8):
        super().__init__()
        self.register_buffer("order", torch.linspace(0, 1, length * width).view(length, width))

    def forward(self, x):
        before = self.order.clone()  # origin
        reverse_into(before, self.order)  # origin
        return x.sum(0) + self.order


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), Mirror(), nn.Linear(8, 3))
    step = torch.compile(model) if variant == "target" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for _ in range(2):
        loss = step(torch.randn(2, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return [*values, parameter_norm(model)]


if __name__ == "__main__":
    run(main)
