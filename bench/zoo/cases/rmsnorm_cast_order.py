"""RMSNorm casts to bf16 before it multiplies by the weight, not after."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing, module

PATH = "blocks.0.norm1"
ORIGIN = Truth(
    (
        module(PATH, "RMSNorm"),
        call("Tensor.mul", PATH),
        call("Tensor.to", PATH),
        extra("Tensor.mul", PATH),
        missing("Tensor.(mul|to|float)", PATH, marker=None),
        extra("Tensor.to", PATH),
    ),
    ("precision",),
    step=0,
    repair=("cast",),
)


class RMSNorm(gpt.RMSNorm):
    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * h.to(x.dtype)  # origin


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT().to(torch.bfloat16)
    if variant == "target":
        for block in model.blocks:
            block.norm1.__class__ = block.norm2.__class__ = RMSNorm
        model.norm.__class__ = RMSNorm
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
