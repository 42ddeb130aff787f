"""The halves are turned the other way, and the second block's gate has another activation."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (
        call("Torch.cat", "blocks.0.attn", marker="halves"),
        call("Tensor.neg", "blocks.0.attn", marker="halves"),
    ),
    ("semantic",),
    step=0,
    second=(
        call("Functional.(silu|relu)", "blocks.1.mlp", marker="gate"),
        extra("Functional.relu", "blocks.1.mlp", marker="gate"),
        missing("Functional.silu", "blocks.1.mlp", marker="gate"),
    ),
)


class Attention(gpt.Attention):
    variant = "reference"

    def forward(self, x, cosine, sine, mask, cache=None):
        q, k, v = self.project(x)
        q, k = self.turn(q, cosine, sine), self.turn(k, cosine, sine)
        return self.join(self.attend(q, self.spread(k), self.spread(v), mask))

    def turn(self, x, cosine, sine):
        first, second = x.chunk(2, dim=-1)
        if self.variant == "target":
            turned = torch.cat([second, -first], dim=-1)  # halves
        else:
            turned = torch.cat([-second, first], dim=-1)  # halves
        return x * cosine + turned * sine


class SwiGLU(gpt.SwiGLU):
    variant = "reference"

    def forward(self, x):
        gate = F.relu(self.gate(x)) if self.variant == "target" else F.silu(self.gate(x))  # gate
        return self.down(gate * self.up(x))


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    for block in model.blocks:
        block.attn.__class__ = Attention
    model.blocks[0].attn.variant = variant
    model.blocks[1].mlp.__class__ = SwiGLU
    model.blocks[1].mlp.variant = variant
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
