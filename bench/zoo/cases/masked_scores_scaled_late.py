"""Scores are masked with minus infinity; in the second layer they are scaled by the wrong size."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Tensor.(div|truediv)", "blocks.1.attn"),), ("semantic",), step=0)


class Attention(gpt.Attention):
    size_of_scale = None

    def attend(self, q, k, v, mask):
        scores = (q @ k.transpose(-2, -1)).masked_fill(~mask, -torch.inf)
        scores = scores / (self.size_of_scale or self.size) ** 0.5  # origin
        return F.softmax(scores, dim=-1) @ v


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    for block in model.blocks:
        block.attn.__class__ = Attention
    if variant == "target":
        model.blocks[1].attn.size_of_scale = 8.3
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
