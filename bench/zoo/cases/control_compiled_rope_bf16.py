"""A rotary embedding in bfloat16, compiled, whose casts Inductor leaves out (pytorch issue 182225), against eager."""

import torch
from torch import nn

from bench.zoo.script import run

CONTROL = True


class Rotary(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)

    def forward(self, x, cos, sin):
        q, k = self.q(x), self.k(x)
        return rotated(q, cos, sin) @ rotated(k, cos, sin).mT


def rotated(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def main(variant):
    torch.manual_seed(0)
    model = Rotary().bfloat16()
    step = torch.compile(model) if variant == "target" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    angles = torch.outer(torch.arange(7.0), torch.logspace(0, -2, 8)).repeat(1, 2)
    values = []
    for _ in range(2):
        x = torch.randn(2, 7, 16).bfloat16()
        loss = step(x, angles.cos().bfloat16(), angles.sin().bfloat16()).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
