"""Scores are masked with minus infinity here and with the lowest number there, from the same scores."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


class Attention(gpt.Attention):
    fill = -torch.inf

    def attend(self, q, k, v, mask):
        scores = (q @ k.transpose(-2, -1)).masked_fill(~mask, self.fill) * self.size**-0.5
        return F.softmax(scores, dim=-1) @ v


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    for block in model.blocks:
        block.attn.__class__ = Attention
        block.attn.fill = torch.finfo(torch.float32).min if variant == "target" else -torch.inf
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
