"""A projection that nothing uses is another one; the output projection has no bias."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.models import classic
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Functional.linear", "blocks.1.mlp"),), ("semantic",), step=0)


class Mlp(classic.Mlp):
    variant = "reference"
    drops = False

    def forward(self, x):
        with torch.no_grad():
            self.probe = torch.tanh(x) if self.variant == "target" else torch.sigmoid(x)
        bias = None if self.drops else self.down.bias
        return F.linear(F.gelu(self.up(x)), self.down.weight, bias)  # origin


def main(variant):
    torch.manual_seed(0)
    model = classic.ClassicGPT()
    for block in model.blocks:
        block.mlp.__class__ = Mlp
        block.mlp.variant = variant
        nn.init.normal_(block.mlp.down.bias, std=0.3)
    model.blocks[1].mlp.drops = variant == "target"
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
