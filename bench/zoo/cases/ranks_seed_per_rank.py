"""Each rank seeds its weights with its own number, and nobody broadcasts them."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from bench.zoo.models.ranks import WORLD, launch
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth

ORIGIN = Truth(
    (
        Answer(r"(.*\.)?weight", ("parameter",), marker=None),
        Answer(r"(Torch|Tensor)\.\w+_\.\d+\.forward", marker=None),  # the initialiser
    ),
    ("parameter", "input"),
    step=0,
    rank=1,
)


def job(rank, variant):
    torch.manual_seed(rank if variant == "target" else 0)
    model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    values = []
    for _ in range(2):
        x = torch.randn(6, 5, generator=generator)
        loss = F.mse_loss(model(x).squeeze(1), x.mean(1))
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= WORLD
        optimizer.step()
        values.append(loss.item())
    return values


def main(variant):
    return launch(job, variant)


if __name__ == "__main__":
    run(main)
