"""A metric that nothing uses is computed otherwise in the first layer; the last residual is scaled."""

import torch

from bench.zoo.models import classic
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra

ORIGIN = Truth((extra("Tensor.mul", "blocks.1"), call("Tensor.mul", "blocks.1")), ("semantic",), step=0)


class Block(classic.Block):
    variant = "reference"
    last = False

    def forward(self, x, padding=None):
        x = x + self.attn(self.ln1(x), padding)
        self.metric = (x.abs().mean() if self.variant == "target" else x.pow(2).mean()).item()
        out = self.mlp(self.ln2(x))
        if self.variant == "target" and self.last:
            out = out * 0.9  # origin
        return x + out


def main(variant):
    torch.manual_seed(0)
    model = classic.ClassicGPT()
    for block in model.blocks:
        block.__class__ = Block
        block.variant = variant
    model.blocks[-1].last = True
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
