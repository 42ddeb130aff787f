"""Under a window's mask of the lowest numbers the scores of one layer have another temperature."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra

ORIGIN = Truth((extra("Tensor.mul", "blocks.1.attn"), call("Tensor.mul", "blocks.1.attn")), ("semantic",), step=0)


class Attention(gpt.Attention):
    sharp = False

    def attend(self, q, k, v, mask):
        scores = (q @ k.transpose(-2, -1)) * self.size**-0.5
        scores = scores.masked_fill(~(mask & ~mask.tril(-4)), torch.finfo(torch.float32).min)
        if self.sharp:
            scores = scores * 1.02  # origin
        return F.softmax(scores, dim=-1) @ v


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    for block in model.blocks:
        block.attn.__class__ = Attention
    model.blocks[1].attn.sharp = variant == "target"
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
