"""Gemma's norm computes `1 + weight` in bf16 instead of float32."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, module

PATH = "blocks.0.norm1"
ORIGIN = Truth(
    (module(PATH, "OffsetNorm"), call("Tensor.r?add", PATH), extra("Tensor.r?add", PATH)),
    ("precision",),
    step=0,
    repair=("cast",),
)


class OffsetNorm(gpt.RMSNorm):
    variant = "reference"

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.variant == "target":
            scale = 1 + self.weight  # origin
        else:
            scale = 1 + self.weight.float()
        return (h * scale.float()).to(x.dtype)


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT().to(torch.bfloat16)
    OffsetNorm.variant = variant
    for block in model.blocks:
        block.norm1.__class__ = block.norm2.__class__ = OffsetNorm
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
