"""The target also logs norms and histograms of its activations, which changes nothing."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


class Block(gpt.Block):
    def forward(self, x, cosine, sine, mask, cache=None):
        x = x + self.attn(self.norm1(x), cosine, sine, mask, cache)
        with torch.no_grad():
            self.log = (x.norm(), x.abs().amax(), torch.histc(x, 8))
        return x + self.mlp(self.norm2(x))


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    if variant == "target":
        for block in model.blocks:
            block.__class__ = Block
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
