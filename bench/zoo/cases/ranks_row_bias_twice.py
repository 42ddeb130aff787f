"""Tensor parallel: the row-parallel layer adds its bias on every rank, before the sum."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from bench.zoo.models.ranks import WORLD, launch
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, missing

ORIGIN = Truth(
    (call("Functional.linear"), missing("Tensor.add")),
    ("semantic",),
    step=0,
    rank=0,
    repair=(r"bias=None \(now a tensor\)",),
)


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class ColumnParallel(nn.Linear):
    def forward(self, x):
        part = slice(dist.get_rank() * self.out_features // WORLD, (dist.get_rank() + 1) * self.out_features // WORLD)
        return F.linear(Copy.apply(x), self.weight[part], self.bias[part])


class RowParallel(nn.Linear):
    early = False

    def forward(self, x):
        part = slice(dist.get_rank() * self.in_features // WORLD, (dist.get_rank() + 1) * self.in_features // WORLD)
        if self.early:
            return Reduce.apply(F.linear(x, self.weight[:, part], self.bias))  # origin
        return Reduce.apply(F.linear(x, self.weight[:, part])) + self.bias  # missing


def job(rank, variant):
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "inp": nn.Linear(6, 12),
            "mlp": nn.ModuleDict({"column": ColumnParallel(12, 24), "row": RowParallel(24, 12)}),
            "out": nn.Linear(12, 1),
        }
    )
    model["mlp"]["row"].early = variant == "target"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    values = []
    for _ in range(2):
        x = torch.randn(5, 6)
        h = model["inp"](x)
        h = h + model["mlp"]["row"](F.gelu(model["mlp"]["column"](h)))
        loss = model["out"](h).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def main(variant):
    return launch(job, variant)


if __name__ == "__main__":
    run(main)
