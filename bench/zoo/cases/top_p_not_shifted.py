"""Nucleus sampling drops the token that crosses the threshold: the cumulative probabilities are not shifted."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, missing

ORIGIN = Truth(
    (missing("Tensor.sub"), call("Tensor.(gt|ge|lt|le)")),
    ("semantic", "input"),
    step=0,
    repair=(r"missing: Tensor\.sub",),
)


def sample(logits, variant, top_p=0.7, temperature=0.8):
    logits, order = (logits / temperature).sort(descending=True)
    probabilities = F.softmax(logits, -1)
    total = probabilities.cumsum(-1)
    if variant == "target":
        drop = total > top_p  # origin
        drop[:, 0] = False
    else:
        drop = total - probabilities > top_p  # missing
    kept = probabilities.masked_fill(drop, 0.0)
    choice = torch.multinomial(kept / kept.sum(-1, keepdim=True), 1)
    return order.gather(-1, choice), kept


@torch.no_grad()
def main(variant):
    torch.manual_seed(0)
    embed, cell, head = nn.Embedding(24, 10), nn.GRUCell(10, 14), nn.Linear(14, 24)
    h, token, values = torch.zeros(3, 14), torch.tensor([1, 2, 3]), []
    for _ in range(4):
        h = cell(embed(token), h)
        token, kept = sample(head(h), variant)
        token = token.squeeze(-1)
        values.append(kept.sum().item())
    return values


if __name__ == "__main__":
    run(main)
