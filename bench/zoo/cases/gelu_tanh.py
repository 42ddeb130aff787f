"""Block 1's GELU is the tanh approximation."""

import torch
import torch.nn.functional as F

from bench.zoo.models import classic
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Functional.gelu", "blocks.1.mlp"),), ("semantic",), step=0, repair=("approximate='none'",))


class Mlp(classic.Mlp):
    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))  # origin


def main(variant):
    torch.manual_seed(0)
    model = classic.ClassicGPT()
    if variant == "target":
        model.blocks[1].mlp.__class__ = Mlp
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
