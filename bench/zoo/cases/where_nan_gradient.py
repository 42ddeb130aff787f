"""A root under `where` has an infinite slope at zero: the forward is right, the gradients are NaN."""

import torch
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, missing

ORIGIN = Truth(
    (
        call("Tensor.sqrt", phase="backward"),
        call("Tensor.sqrt"),
        call("Torch.where", phase="backward"),
        missing("Torch.where"),
    ),
    ("semantic", "input"),
    step=0,
)


def distances(x, variant):
    squared = (x[:, None] - x[None]).square().sum(-1)
    near = squared > 0
    if variant == "target":
        return torch.where(near, squared.sqrt(), 0.0)  # origin
    safe = torch.where(near, squared, 1.0)  # missing
    return torch.where(near, safe.sqrt(), 0.0)  # missing


def main(variant):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    values = []
    for _ in range(2):
        x = torch.randn(5, 4)
        loss = (distances(net(x), variant) - torch.cdist(x, x)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
