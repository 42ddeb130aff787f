"""The evaluation drops out all the same: F.dropout without training=self.training."""

import torch
import torch.nn.functional as F

from bench.zoo.models import classic
from bench.zoo.models.training import language_loss, token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Functional.dropout", "blocks.0"),), ("semantic",), repair=("training=False",))


class Block(classic.Block):
    variant = "reference"

    def forward(self, x, padding=None):
        x = x + self.attn(self.ln1(x), padding)
        h = self.mlp(self.ln2(x))
        if self.variant == "target":
            h = F.dropout(h, 0.1)  # origin
        else:
            h = F.dropout(h, 0.1, self.training)
        return x + h


def main(variant):
    torch.manual_seed(0)
    Block.variant = variant
    model = classic.ClassicGPT()
    for block in model.blocks:
        block.__class__ = Block
    values = train(model, token_batches(1))
    model.eval()
    with torch.no_grad():
        return [*values, *(language_loss(model, *pair).item() for pair in token_batches(2, seed=7))]


if __name__ == "__main__":
    run(main)
