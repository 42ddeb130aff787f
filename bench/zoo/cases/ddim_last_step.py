"""A sampler's last step goes to the first noise level of the schedule instead of to no noise at all."""

import torch
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (
        call("Tensor.getitem"),
        extra("Tensor.getitem"),
        missing("Torch.ones"),
        call("Torch.ones", marker="missing"),
    ),
    ("semantic", "input"),
    step=0,
)


def level(alphas, step, variant):
    if step >= 0:
        return alphas[step]
    if variant == "target":
        return alphas[0]  # origin
    return torch.ones(())  # missing


@torch.no_grad()
def main(variant):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 1, 3, padding=1))
    alphas = torch.cumprod(1 - torch.linspace(0.01, 0.05, 50), 0)
    x = torch.randn(1, 1, 6, 6)
    for step in range(40, -1, -10):
        now, after = level(alphas, step, variant), level(alphas, step - 10, variant)
        noise = net(torch.cat([x, torch.full_like(x, step / 50)], 1))
        clean = (x - (1 - now).sqrt() * noise) / now.sqrt()
        x = after.sqrt() * clean + (1 - after).sqrt() * noise
    return x.flatten().tolist()


if __name__ == "__main__":
    run(main)
