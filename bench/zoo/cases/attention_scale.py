"""Block 1's attention divides by the root of the wrong dimension."""

import math

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Tensor.mul", "blocks.1.attn"),), ("semantic",), step=0, repair=("factor 0.35355",))


class Attention(gpt.Attention):
    def attend(self, q, k, v, mask):
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(self.size + 1))  # origin
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return F.softmax(scores.float(), dim=-1).to(q.dtype) @ v


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    if variant == "target":
        model.blocks[1].attn.__class__ = Attention
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
