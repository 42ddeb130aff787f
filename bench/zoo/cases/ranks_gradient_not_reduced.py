"""Sequence parallel: each rank sees half the sequence, and the norm's gradient is not summed over ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from bench.zoo.models.ranks import launch
from bench.zoo.script import run
from bench.zoo.truth import Truth, missing

ORIGIN = Truth((missing("Distributed.all_reduce"),), ("semantic",), step=0, repair=("all_reduce", "all-reduce"))


def job(rank, variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    values = []
    for _ in range(2):
        x, y = torch.randn(16, 32, generator=generator), torch.randint(8, (16,), generator=generator)
        half = slice(8 * rank, 8 * rank + 8)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[half]), y[half])
        loss.backward()
        for name, parameter in model.named_parameters():
            if variant == "target" and name.startswith("0."):
                continue
            dist.all_reduce(parameter.grad)  # missing
        optimizer.step()
        values.append(loss.item())
    return [*values, model[0].weight.detach().norm().item()]


def main(variant):
    return launch(job, variant)


if __name__ == "__main__":
    run(main)
