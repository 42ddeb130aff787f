"""The word table has no padding index any more: its padding row is zero at first, and then it learns."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, call, module

ORIGIN = Truth(
    (
        module("0", "Embedding"),
        call("Functional.embedding", marker=None),
        Answer(r".*parameters_grad\.(0\.)?weight", marker=None),
    ),
    ("semantic",),
    step=0,
    repair=(r"padding_idx=0 \(now None\)",),
)


def main(variant):
    torch.manual_seed(0)
    table = nn.Embedding(20, 10, padding_idx=0)
    if variant == "target":
        table.padding_idx = None
    model = nn.Sequential(table, nn.Conv1d(6, 6, 3), nn.SiLU(), nn.Flatten(), nn.Linear(48, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    values = []
    for _ in range(3):
        words = torch.randint(1, 20, (4, 6))
        words[1:, 4:] = 0
        loss = F.nll_loss(F.log_softmax(model(words), 1), torch.tensor([0, 1, 2, 1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
