"""Contrastive loss over both ranks: the gathered features carry no gradient, not even the rank's own part."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from bench.zoo.models.ranks import WORLD, launch
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, call, missing

ORIGIN = Truth(
    (
        call("Torch.cat"),
        missing("Torch.cat"),
        # The first gradient that is not there: of the similarity with the gathered features.
        Answer(r"Tensor\.(__)?matmul(__)?\.\d+\.backward", phase="backward", marker="consumer"),
        Answer(r"(Tensor|Torch)\.\w+\.\d+\.backward", ("missing",), marker="consumer"),
    ),
    ("semantic", "input"),
    step=0,
)


def gather(features, variant):
    parts = [torch.zeros_like(features) for _ in range(WORLD)]
    dist.all_gather(parts, features.detach())
    if variant == "reference":
        parts[dist.get_rank()] = features
    return torch.cat(parts)  # origin # missing


def job(rank, variant):
    torch.manual_seed(0)
    towers = nn.ModuleDict({"image": nn.Linear(10, 8), "text": nn.Linear(6, 8)})
    optimizer = torch.optim.SGD(towers.parameters(), lr=0.2)
    generator = torch.Generator().manual_seed(rank)
    values = []
    for _ in range(2):
        image = F.normalize(towers["image"](torch.randn(4, 10, generator=generator)), dim=-1)
        text = F.normalize(towers["text"](torch.randn(4, 6, generator=generator)), dim=-1)
        labels = torch.arange(4) + 4 * rank
        logits = image @ gather(text, variant).T * 10  # consumer
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        for p in towers.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
        optimizer.step()
        values.append(loss.item())
    return values


def main(variant):
    return launch(job, variant)


if __name__ == "__main__":
    run(main)
