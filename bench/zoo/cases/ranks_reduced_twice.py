"""The gradient of the head is averaged over the ranks twice, and so is halved."""

import torch
import torch.distributed as dist
from torch import nn

from bench.zoo.models.ranks import WORLD, launch
from bench.zoo.models.training import parameter_norm
from bench.zoo.script import run
from bench.zoo.truth import Truth, extra

ORIGIN = Truth(
    (extra("Tensor.div_"),), ("semantic",), step=0, repair=("factor of 2 ", "multiplied by the number of ranks, 2 ")
)


def job(rank, variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(5 + rank)
    values = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16, generator=generator)).pow(2).mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(WORLD)
        if variant == "target":
            model[2].weight.grad.div_(WORLD)  # origin
        optimizer.step()
        values.append(loss.item())
    return [*values, parameter_norm(model)]


def main(variant):
    return launch(job, variant)


if __name__ == "__main__":
    run(main)
