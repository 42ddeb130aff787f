"""Sharded gradients are clipped by each rank's own norm, not by the norm over all shards."""

import torch
import torch.distributed as dist
from torch import nn

from bench.zoo.models.ranks import launch
from bench.zoo.script import run
from bench.zoo.truth import Truth, missing

ORIGIN = Truth((missing("Distributed.all_reduce"),), ("semantic",), step=0, repair=("all_reduce", "all-reduce"))


def job(rank, variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    with torch.no_grad():
        model[2].weight.mul_(1 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    values = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(4 * torch.randn(8, 16, generator=generator)).pow(2).mean()
        loss.backward()
        square = torch.stack([parameter.grad.pow(2).sum() for parameter in model.parameters()]).sum()
        if variant == "reference":
            dist.all_reduce(square)  # missing
        scale = (0.5 / (square.sqrt() + 1e-6)).clamp(max=1.0)
        for parameter in model.parameters():
            parameter.grad.mul_(scale)
        optimizer.step()
        values.append(loss.item())
    return [*values, model[0].weight.detach().norm().item()]


def main(variant):
    return launch(job, variant)


if __name__ == "__main__":
    run(main)
