"""The queries are scaled in place of the scores, which is harmless; the second layer turns keys the other way."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra

ORIGIN = Truth(
    (
        extra("(Tensor|Torch).neg", "blocks.1.attn"),
        call("Tensor.mul", "blocks.1.attn"),
        extra("Tensor.mul", "blocks.1.attn"),
    ),
    ("semantic",),
    step=0,
)


class Attention(gpt.Attention):
    variant = "reference"
    backwards = False

    def forward(self, x, cosine, sine, mask, cache=None):
        q, k, v = self.project(x)
        q = gpt.rotate(q, cosine, sine)
        k = gpt.rotate(k, cosine, -sine if self.backwards else sine)  # origin
        return self.join(self.attend(q, self.spread(k), self.spread(v), mask))

    def attend(self, q, k, v, mask):
        if self.variant == "target":
            scores = (q * self.size**-0.5) @ k.transpose(-2, -1)
        else:
            scores = (q @ k.transpose(-2, -1)) / self.size**0.5
        return F.softmax(scores.masked_fill(~mask, -torch.inf), dim=-1) @ v


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    for block in model.blocks:
        block.attn.__class__ = Attention
        block.attn.variant = variant
    model.blocks[1].attn.backwards = variant == "target"
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
