"""The fused gate-and-up weight was resharded for two ranks, and is still split in halves."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing, module

PATH = "blocks.0.mlp"
ORIGIN = Truth(
    (
        call("Tensor.chunk", PATH),
        extra("Tensor.chunk", PATH),
        missing("Tensor.(unflatten|unbind|flatten|view)", PATH),
        module(PATH, "Fused"),
    ),
    ("semantic",),
    step=0,
    repair=("split", "interleave"),
)


class Fused(nn.Module):
    variant = "reference"

    def __init__(self, config):
        super().__init__()
        self.gate_up = nn.Linear(config.dim, 2 * config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x):
        h = self.gate_up(x)
        if self.variant == "target":
            gate, up = h.chunk(2, dim=-1)  # origin
        else:
            gate, up = h.unflatten(-1, (2, 2, -1)).transpose(-3, -2).flatten(-2).unbind(-2)  # missing
        return self.down(F.silu(gate) * up)


def main(variant):
    torch.manual_seed(0)
    Fused.variant = variant
    config = gpt.Config()
    model = gpt.GPT(config)
    for block in model.blocks:
        block.mlp = Fused(config)
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
