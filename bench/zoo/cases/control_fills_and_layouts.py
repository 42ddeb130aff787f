"""Scores are masked twice, with two numbers, in two orders and two layouts."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


class Attention(gpt.Attention):
    variant = "reference"

    def attend(self, q, k, v, mask):
        window = ~mask.tril(-5)
        if self.variant == "target":
            scores = torch.einsum("bhid,bhjd->bhij", q * self.size**-0.5, k)
            scores = scores.masked_fill(~window, -1e9).masked_fill(~mask, -torch.inf)
        else:
            scores = (q @ k.transpose(-2, -1)) * self.size**-0.5
            scores = scores.masked_fill(~mask, -torch.inf).masked_fill(~window, -1e9)
        return F.softmax(scores, dim=-1) @ v


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    for block in model.blocks:
        block.attn.__class__ = Attention
        block.attn.variant = variant
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
