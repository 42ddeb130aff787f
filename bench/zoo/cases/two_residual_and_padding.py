"""A block adds its normed input, not its input, and the loss counts the padding."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth(
    (call("Tensor.add", "blocks.0", marker="residual"),),
    ("semantic",),
    step=0,
    second=(call("Functional.cross_entropy", "", marker="loss"),),
)


class Block(gpt.Block):
    variant = "reference"

    def forward(self, x, cosine, sine, mask, cache=None):
        h = self.norm1(x)
        out = self.attn(h, cosine, sine, mask, cache)
        x = (h if self.variant == "target" else x) + out  # residual
        return x + self.mlp(self.norm2(x))


def loss_of(model, tokens, targets):
    ignored = -100 if model.variant == "target" else 0
    logits = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=ignored)  # loss


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    model.variant = variant
    model.blocks[0].__class__ = Block
    model.blocks[0].variant = variant
    batches = [(tokens, targets.masked_fill(targets > 48, 0)) for tokens, targets in token_batches(2)]
    return train(model, batches, loss_of)


if __name__ == "__main__":
    run(main)
