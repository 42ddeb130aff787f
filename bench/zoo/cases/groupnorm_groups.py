"""One GroupNorm of a plain Sequential has eight groups instead of four."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, module

ORIGIN = Truth(
    (module("4", "GroupNorm"), call("Functional.group_norm", "4", marker=None)), ("semantic",), step=0, repair=("4",)
)


def network(groups):
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, bias=False),
        nn.GroupNorm(groups, 16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def main(variant):
    torch.manual_seed(0)
    net = network(8 if variant == "target" else 4)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    losses = []
    for _ in range(2):
        x, y = torch.randn(4, 3, 12, 12), torch.randint(10, (4,))
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    run(main)
