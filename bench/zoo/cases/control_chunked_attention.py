"""Attention over chunks of queries against all at once."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


class Attention(gpt.Attention):
    def attend(self, q, k, v, mask):
        parts = zip(q.split(4, dim=2), mask.split(4, dim=0), strict=True)
        return torch.cat([super(Attention, self).attend(rows, k, v, allowed) for rows, allowed in parts], dim=2)


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    if variant == "target":
        for block in model.blocks:
            block.attn.__class__ = Attention
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
