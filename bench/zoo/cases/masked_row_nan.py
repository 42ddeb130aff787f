"""Scores are filled with -inf instead of the smallest number, and rows of padding alone become NaN."""

import math

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

PATH = "blocks.0.attn"
ORIGIN = Truth(
    (call("Tensor.masked_fill", PATH), call("(Functional|Torch).softmax", PATH, marker="nan")),
    ("semantic",),
    step=0,
    repair=(r"value=-3\.40",),
)


class Attention(gpt.Attention):
    variant = "reference"

    def attend(self, q, k, v, mask):
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(self.size))
        if self.variant == "target":
            scores = scores.masked_fill(~mask, float("-inf"))  # origin
        else:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return F.softmax(scores, dim=-1) @ v  # nan


class GPT(gpt.GPT):
    def mask(self, past, length):
        padding = torch.arange(length) >= 2  # two tokens of padding on the left
        return super().mask(past, length) & padding


def main(variant):
    torch.manual_seed(0)
    Attention.variant = variant
    model = GPT()
    for block in model.blocks:
        block.attn.__class__ = Attention
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
