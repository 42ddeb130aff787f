"""Every layer has the tanh GELU, and the last norm is forgotten besides."""

import torch
import torch.nn.functional as F

from bench.zoo.models import classic
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, missing, module

ORIGIN = Truth(
    (call("Functional.gelu", "blocks.0.mlp"),),
    ("semantic",),
    step=0,
    second=(module("ln", "LayerNorm", kinds=("missing",)), missing("Functional.layer_norm", "ln", marker=None)),
)


class Mlp(classic.Mlp):
    approximate = "none"

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate=self.approximate))  # origin


class ClassicGPT(classic.ClassicGPT):
    variant = "reference"

    def forward(self, tokens, padding=None):
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x, padding)
        return self.head(x if self.variant == "target" else self.ln(x))


def main(variant):
    torch.manual_seed(0)
    model = ClassicGPT(layers=6)
    model.variant = variant
    for block in model.blocks:
        block.mlp.__class__ = Mlp
        if variant == "target":
            block.mlp.approximate = "tanh"
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
