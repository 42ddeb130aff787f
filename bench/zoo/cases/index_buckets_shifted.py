"""Relative positions are sorted into buckets from the other end by one."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra

ORIGIN = Truth(
    (
        call("Tensor.(sub|clamp|add)", "blocks.0.attn"),
        extra("Tensor.(sub|add)", "blocks.0.attn"),
    ),
    ("semantic",),
    step=0,
)


class Attention(gpt.Attention):
    shifted = False

    def attend(self, q, k, v, mask):
        length = q.shape[2]
        places = torch.arange(length)
        apart = places[:, None] - places[None]
        if self.shifted:
            apart = apart - 1  # origin
        bias = self.table(apart.clamp(0, 7)).permute(2, 0, 1)
        scores = (q @ k.transpose(-2, -1)) * self.size**-0.5 + bias
        return F.softmax(scores.masked_fill(~mask, -torch.inf), dim=-1) @ v


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    for block in model.blocks:
        block.attn.__class__ = Attention
        block.attn.table = nn.Embedding(8, 4)
        block.attn.shifted = variant == "target"
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
