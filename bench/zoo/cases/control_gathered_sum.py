"""Two ranks: tensor parallel parts are gathered and added on each rank against one all-reduce."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from bench.zoo.models.ranks import WORLD, launch
from bench.zoo.script import run

CONTROL = True


class Sum(torch.autograd.Function):
    gathered = False

    @staticmethod
    def forward(ctx, part):
        if Sum.gathered:
            parts = [torch.empty_like(part) for _ in range(WORLD)]
            dist.all_gather(parts, part.contiguous())
            return torch.stack(parts).sum(0)
        part = part.clone()
        dist.all_reduce(part, op=dist.ReduceOp.SUM)
        return part

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def job(rank, variant):
    Sum.gathered = variant == "target"
    torch.manual_seed(0)
    full = {"up": torch.randn(32, 10) / 3, "down": torch.randn(10, 32) / 6}
    up = full["up"].chunk(WORLD, 0)[rank].clone().requires_grad_()
    down = full["down"].chunk(WORLD, 1)[rank].clone().requires_grad_()
    optimizer = torch.optim.Adam([up, down], lr=1e-3)
    values = []
    for _ in range(2):
        x = torch.randn(6, 10)
        y = x + Sum.apply(F.linear(F.gelu(F.linear(x, up)), down))
        loss = F.smooth_l1_loss(y, x.roll(1, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def main(variant):
    return launch(job, variant)


if __name__ == "__main__":
    run(main)
