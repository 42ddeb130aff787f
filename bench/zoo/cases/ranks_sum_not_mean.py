"""Data parallel: gradients are summed over the ranks and not divided by their number."""

import torch
import torch.distributed as dist

from bench.zoo.models.classic import ClassicGPT
from bench.zoo.models.ranks import WORLD, launch
from bench.zoo.models.training import language_loss, parameter_norm, token_batches
from bench.zoo.script import run
from bench.zoo.truth import Truth, missing

ORIGIN = Truth(
    (missing("Tensor.(i(true)?div|div_)"),),
    ("semantic",),
    step=0,
    repair=("divided by 2", "factor of 0.5", r"the mean over 2 ranks \(now the sum"),
)


def job(rank, variant):
    torch.manual_seed(0)
    model = ClassicGPT(layers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for tokens, targets in token_batches(2, seed=3 + rank):
        optimizer.zero_grad()
        loss = language_loss(model, tokens, targets)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            if variant == "reference":
                parameter.grad.div_(WORLD)  # missing
        optimizer.step()
        values.append(loss.item())
    return [*values, parameter_norm(model)]


def main(variant):
    return launch(job, variant)


if __name__ == "__main__":
    run(main)
