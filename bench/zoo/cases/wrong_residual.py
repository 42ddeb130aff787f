"""Block 1 adds its feed-forward to the normalised activations, not to the residual stream."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Tensor.add", "blocks.1"),), ("semantic", "input"), step=0, repair=("operand Tensor.add",))


class Block(gpt.Block):
    def forward(self, x, cosine, sine, mask, cache=None):
        x = x + self.attn(self.norm1(x), cosine, sine, mask, cache)
        h = self.norm2(x)
        return h + self.mlp(h)  # origin


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    if variant == "target":
        model.blocks[1].__class__ = Block
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
