"""The constructor takes the attention's scale from the whole width, not from a head's."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth(
    (call("Tensor.mul", "blocks.0.attn", marker="use"),),
    ("semantic",),
    step=0,
    chain=(r"self\.scaling.*@cause",),
)


class Attention(gpt.Attention):
    variant = "reference"

    def __init__(self, config):
        super().__init__(config)
        if self.variant == "target":
            self.scaling = config.dim**-0.5  # cause
        else:
            self.scaling = self.size**-0.5

    def attend(self, q, k, v, mask):
        scores = (q @ k.transpose(-2, -1)) * self.scaling  # use
        return F.softmax(scores.masked_fill(~mask, -torch.inf), dim=-1) @ v


def main(variant):
    torch.manual_seed(0)
    Attention.variant, gpt.Attention = variant, Attention
    return train(gpt.GPT(), token_batches(2))


if __name__ == "__main__":
    run(main)
