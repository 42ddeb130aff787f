"""Another branch is taken, by a flag, that computes the same."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


class Attention(gpt.Attention):
    is_split = False

    def join(self, x):
        if self.is_split:
            parts = x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)
            return self.out(parts + torch.zeros_like(parts))
        return self.out(x.transpose(1, 2).flatten(2))


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    for block in model.blocks:
        block.attn.__class__ = Attention
        block.attn.is_split = variant == "target"
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
