"""addmm against matmul and add."""

import torch
import torch.nn.functional as F

from bench.zoo.models import classic
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


class Mlp(classic.Mlp):
    variant = "reference"

    def forward(self, x):
        rows = x.flatten(0, 1)
        if self.variant == "target":
            h = torch.addmm(self.up.bias, rows, self.up.weight.t())
        else:
            h = rows @ self.up.weight.t() + self.up.bias
        return self.down(F.gelu(h)).view_as(x)


def main(variant):
    torch.manual_seed(0)
    Mlp.variant = variant
    model = classic.ClassicGPT()
    for block in model.blocks:
        block.mlp.__class__ = Mlp
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
