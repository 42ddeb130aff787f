"""A helper that every norm calls is passed its eps by one caller in the wrong unit."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth(
    (call("Tensor.add", "blocks.1.norm2", marker="use"),),
    ("semantic",),
    step=0,
    chain=("@caller",),
)


def normalise(x, weight, eps):
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))  # use


class Norm(gpt.RMSNorm):
    wrong = False

    def forward(self, x):
        if self.wrong:
            return normalise(x, self.weight, 1e-2)  # caller
        return normalise(x, self.weight, 1e-6)


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    for block in model.blocks:
        block.norm1.__class__ = block.norm2.__class__ = Norm
    model.blocks[1].norm2.wrong = variant == "target"
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
