"""Sentences are pooled over all positions, padding included."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (
        call("Tensor.mean"),
        extra("Tensor.mean"),
        call("Tensor.sum"),
        missing("Tensor.(sum|mul|clamp|unsqueeze)"),
        missing("Tensor.(true)?div"),
    ),
    ("semantic",),
    step=0,
)


def pool(hidden, mask, variant):
    if variant == "target":
        return hidden.mean(1)  # origin
    weights = mask.unsqueeze(-1).float()  # missing
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)  # missing


def main(variant):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Embedding(40, 12), nn.Linear(12, 12), nn.GELU(approximate="tanh"))
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=5e-3)
    values = []
    for _ in range(2):
        lengths = torch.tensor([7, 4, 5, 2])
        mask = torch.arange(7) < lengths[:, None]
        first, second = (torch.randint(1, 40, (4, 7)) * mask for _ in range(2))
        a, b = (F.normalize(pool(encoder(tokens), mask, variant), dim=-1) for tokens in (first, second))
        loss = F.cross_entropy(a @ b.T / 0.05, torch.arange(4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
