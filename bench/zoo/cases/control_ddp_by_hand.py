"""Two ranks: DDP against gradients that are summed and divided by hand in one flat buffer."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.zoo.models.ranks import WORLD, launch
from bench.zoo.script import run

CONTROL = True


def average(model):
    gradients = [p.grad for p in model.parameters()]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    flat /= WORLD
    for g, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        g.copy_(part.view_as(g))


def job(rank, variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
    step = DistributedDataParallel(model) if variant == "reference" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(10 + rank)
    values = []
    for _ in range(2):
        x = torch.randn(8, 6, generator=generator)
        loss = F.cross_entropy(step(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        if variant == "target":
            average(model)
        optimizer.step()
        values.append(loss.item())
    return values


def main(variant):
    return launch(job, variant)


if __name__ == "__main__":
    run(main)
