"""Each layer's residual is scaled, and the optimizer decays the norms."""

import torch

from bench.zoo.models import classic
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, optimizer

ORIGIN = Truth(
    (extra("Tensor.mul", "blocks.0"), call("Tensor.mul", "blocks.0")),
    ("semantic",),
    step=0,
    second=(optimizer("AdamW"),),
)


class Block(classic.Block):
    variant = "reference"

    def forward(self, x, padding=None):
        x = x + self.attn(self.ln1(x), padding)
        out = self.mlp(self.ln2(x))
        if self.variant == "target":
            out = out * 0.9  # origin
        return x + out


def main(variant):
    torch.manual_seed(0)
    model = classic.ClassicGPT(layers=4)
    for block in model.blocks:
        block.__class__ = Block
        block.variant = variant
    norms = [weight for weight in model.parameters() if weight.dim() < 2]
    others = [weight for weight in model.parameters() if weight.dim() > 1]
    decay = 0.1 if variant == "target" else 0.0
    groups = [{"params": norms, "weight_decay": decay}, {"params": others, "weight_decay": 0.1}]
    return train(model, token_batches(2), optimizer=torch.optim.AdamW(groups, lr=1e-2))


if __name__ == "__main__":
    run(main)
