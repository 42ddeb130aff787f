"""A layer leaves its window to the default of a constructor two classes further in."""

import torch
from torch import nn

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth

ORIGIN = Truth(
    (Answer(r"Tensor\.(__)?(add|lt|gt|le|ge|sub|mul)(__)?\..*", module="blocks.0.attn.bias", marker="use"),),
    ("semantic",),
    step=0,
    chain=(r"slope=0\.5, the default of __init__",),
)


class Steep(nn.Module):
    def __init__(self, slope=0.5):
        super().__init__()
        self.slope = slope

    def forward(self, scores):
        here = torch.arange(scores.shape[-1])
        return scores + (here[None] - here[:, None]) * self.slope  # use


class Gentle(nn.Module):
    def __init__(self, slope=0.25):
        super().__init__()
        self.slope = slope

    def forward(self, scores):
        here = torch.arange(scores.shape[-1])
        return scores + (here[None] - here[:, None]) * self.slope  # use


class Attention(gpt.Attention):
    def attend(self, q, k, v, mask):
        scores = self.bias(q @ k.transpose(-2, -1) / 3.0)
        return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


class One(Attention):
    def __init__(self, config):
        super().__init__(config)
        self.bias = Steep()


class Other(Attention):
    def __init__(self, config):
        super().__init__(config)
        self.bias = Gentle()


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    for block in model.blocks:
        block.attn = (One if variant == "target" else Other)(gpt.Config())
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
