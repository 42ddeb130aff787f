"""Grouped-query attention tiles its key heads instead of repeating each."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

PATH = "blocks.0.attn"
ORIGIN = Truth(
    (
        call("Tensor.(repeat|repeat_interleave)", PATH),
        extra("Tensor.repeat", PATH),
        missing("Tensor.repeat_interleave", PATH, marker=None),
    ),
    ("semantic",),
    step=0,
    repair=("repeat_interleave",),
)


class Attention(gpt.Attention):
    def spread(self, x):
        return x.repeat(1, self.heads // self.kv_heads, 1, 1)  # origin


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    if variant == "target":
        for block in model.blocks:
            block.attn.__class__ = Attention
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
