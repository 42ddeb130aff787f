"""Gate and up projection are one product, which is harmless; in the second layer its halves are mixed up."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

PATH = "blocks.1.mlp"
ORIGIN = Truth(
    (
        call("Tensor.chunk", PATH, marker="halves"),
        extra("Tensor.chunk", PATH, marker="halves"),
        call("Functional.silu", PATH),
        call("Tensor.mul", PATH),
        extra("Functional.silu", PATH),
        missing("Functional.silu", PATH, marker=None),
    ),
    ("semantic",),
    step=0,
)


class SwiGLU(gpt.SwiGLU):
    mixed = False

    def forward(self, x):
        both = F.linear(x, torch.cat([self.gate.weight, self.up.weight]))
        gate, up = both.chunk(2, dim=-1)  # halves
        if self.mixed:
            return self.down(F.silu(up) * gate)  # origin
        return self.down(F.silu(gate) * up)


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    if variant == "target":
        for block in model.blocks:
            block.mlp.__class__ = SwiGLU
        model.blocks[1].mlp.mixed = True
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
