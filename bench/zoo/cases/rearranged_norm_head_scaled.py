"""The norms divide in place of multiplying, which is harmless; the head's input is scaled."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra

ORIGIN = Truth((extra("Tensor.mul", ""), call("Tensor.mul", "")), ("semantic",), step=0)


class Norm(gpt.RMSNorm):
    def forward(self, x):
        return self.weight * (x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class GPT(gpt.GPT):
    def logits(self, x):
        return self.head(x * 0.97)  # origin


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    if variant == "target":
        model.__class__ = GPT
        for norm in [model.norm, *(norm for block in model.blocks for norm in (block.norm1, block.norm2))]:
            norm.__class__ = Norm
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
