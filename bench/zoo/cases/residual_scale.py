"""A block forgets to scale its branch before it is added."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, missing

PATH = "blocks.1"
ORIGIN = Truth((missing("Tensor.r?mul", PATH), call("Tensor.add", PATH)), ("semantic",), step=0, repair=("times 0.5",))


class Block(gpt.Block):
    variant = "reference"

    def forward(self, x, cosine, sine, mask, cache=None):
        x = x + self.attn(self.norm1(x), cosine, sine, mask, cache)
        h = self.mlp(self.norm2(x))
        if self.variant == "reference":
            h = 0.5 * h  # missing
        return x + h  # origin


def main(variant):
    torch.manual_seed(0)
    Block.variant = variant
    model = gpt.GPT()
    model.blocks[1].__class__ = Block
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
