"""The position table of a sequence-first tutorial is used with the batch first: positions are added by row of the batch."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (
        call("Tensor.getitem", "position"),
        extra("Tensor.getitem", "position"),
        missing("Tensor.transpose", "position"),
        call("Tensor.add", "position"),
    ),
    ("semantic",),
    step=0,
    repair=(r"slice :6 \(now :3\)",),
)


class Position(nn.Module):
    def __init__(self, variant, size=16, length=40):
        super().__init__()
        self.variant = variant
        angles = torch.arange(length)[:, None] * torch.exp(torch.arange(0, size, 2) * (-math.log(1e4) / size))
        table = torch.zeros(length, 1, size)
        table[:, 0, 0::2], table[:, 0, 1::2] = angles.sin(), angles.cos()
        self.register_buffer("pe", table)

    def forward(self, x):
        if self.variant == "target":
            return x + self.pe[: x.size(0)]  # origin
        return x + self.pe[: x.size(1)].transpose(0, 1)  # missing


class Translator(nn.Module):
    def __init__(self, variant):
        super().__init__()
        self.word = nn.Embedding(30, 16)
        self.position = Position(variant)
        self.body = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 30)

    def forward(self, src, tgt):
        src, tgt = (self.position(self.word(tokens) * 4.0) for tokens in (src, tgt))
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
        return self.head(self.body(src, tgt, tgt_mask=mask, tgt_is_causal=True))


def main(variant):
    torch.manual_seed(0)
    model = Translator(variant)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    values = []
    for _ in range(2):
        src, tgt = torch.randint(30, (3, 6)), torch.randint(30, (3, 5))
        loss = F.cross_entropy(model(src=src, tgt=tgt[:, :-1]).transpose(1, 2), tgt[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
