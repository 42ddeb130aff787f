"""Tensor parallel: the column-parallel layer hands back its own part of the input's gradient, not the sum."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from bench.zoo.models.ranks import WORLD, launch
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, missing

ORIGIN = Truth(
    (
        missing("Distributed.all_reduce"),
        Answer(r"(Function\.)?Enter\.\d+\.backward", marker=None),
        Answer(r".*\bEnter\b.*backward.*", marker=None),
    ),
    ("semantic",),
    step=0,
    repair=(r"all_reduce that is missing",),
)


class Enter(torch.autograd.Function):
    reduce = True

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        if Enter.reduce:
            dist.all_reduce(gradient)  # missing
        return gradient


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def feed_forward(x, up, down):
    return Leave.apply(F.gelu(Enter.apply(x) @ up) @ down)


def job(rank, variant):
    Enter.reduce = variant == "reference"
    torch.manual_seed(0)
    embed, head = torch.randn(30, 8), torch.randn(8, 30)
    full = [(torch.randn(8, 16) / 3, torch.randn(16, 8) / 4) for _ in range(2)]
    parts = [(up.chunk(WORLD, 1)[rank].clone(), down.chunk(WORLD, 0)[rank].clone()) for up, down in full]
    leaves = [embed, head, *(weight for pair in parts for weight in pair)]
    for leaf in leaves:
        leaf.requires_grad_()
    optimizer = torch.optim.SGD(leaves, lr=0.05)
    values = []
    for _ in range(2):
        tokens = torch.randint(30, (12,))
        x = embed[tokens]
        for up, down in parts:
            x = x + feed_forward(F.layer_norm(x, (8,)), up, down)
        loss = F.cross_entropy(x[:-1] @ head, tokens[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def main(variant):
    return launch(job, variant)


if __name__ == "__main__":
    run(main)
