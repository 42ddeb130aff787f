"""Scores are divided by the dimension, not by its root, and the last norm has another eps."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth(
    (call("Tensor.mul", "blocks.0.attn", marker="scores"),),
    ("semantic",),
    step=0,
    second=(call("Tensor.add", "norm", marker=None),),
)


class Attention(gpt.Attention):
    factor = 0.0

    def attend(self, q, k, v, mask):
        scores = (q @ k.transpose(-2, -1)) * self.factor  # scores
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return F.softmax(scores, dim=-1) @ v


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    for block in model.blocks:
        block.attn.__class__ = Attention
        block.attn.factor = 1 / block.attn.size if variant == "target" else block.attn.size**-0.5
    if variant == "target":
        model.norm.eps = 0.1
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
