"""A float16 choice that is cast and added, compiled without its casts (pytorch issue 183761), against eager."""

import torch
from torch import nn

from bench.zoo.script import run

CONTROL = True


class Masked(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x):
        small = (x * self.scale).half()
        chosen = torch.where(small > 0, small, torch.full_like(small, 0.1))
        return (chosen * 1.7).to(torch.float32) + x


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 12), Masked(), nn.Linear(12, 3))
    step = torch.compile(model) if variant == "target" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    values = []
    for _ in range(2):
        loss = step(torch.randn(8, 12)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
