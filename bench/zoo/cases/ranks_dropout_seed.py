"""Tensor parallel: both ranks drop out with the same mask, because the seed forgets the rank."""

import torch
import torch.distributed as dist
from torch import nn

from bench.zoo.models.ranks import launch
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, module

ORIGIN = Truth(
    (module("drop", "Dropout"), call("Functional.dropout", "drop", marker=None)),
    ("input", "unknown", "semantic"),
    step=0,
    rank=1,
)


class Shard(nn.Module):
    """Half of a feed-forward: the hidden units of one rank."""

    def __init__(self, rank):
        super().__init__()
        up, down = torch.randn(64, 16) / 4, torch.randn(16, 64) / 8
        self.up, self.down = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False)
        with torch.no_grad():
            self.up.weight.copy_(up[32 * rank : 32 * rank + 32])
            self.down.weight.copy_(down[:, 32 * rank : 32 * rank + 32])
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.down(self.drop(torch.relu(self.up(x))))


def job(rank, variant):
    torch.manual_seed(0)
    model = Shard(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 16)
    torch.manual_seed(1 if variant == "target" else 1 + rank)
    values = []
    for _ in range(2):
        optimizer.zero_grad()
        partial = model(x)
        total = partial.detach().clone()
        dist.all_reduce(total)
        loss = (partial + (total - partial.detach())).pow(2).mean()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return [*values, model.up.weight.detach().norm().item()]


def main(variant):
    return launch(job, variant)


if __name__ == "__main__":
    run(main)
