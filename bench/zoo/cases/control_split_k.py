"""A linear layer whose inner dimension is summed in two parts."""

import torch

from bench.zoo.models import classic
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


class Mlp(classic.Mlp):
    def forward(self, x):
        h = torch.nn.functional.gelu(self.up(x))
        half = h.shape[-1] // 2
        weight = self.down.weight
        return h[..., :half] @ weight[:, :half].t() + h[..., half:] @ weight[:, half:].t() + self.down.bias


def main(variant):
    torch.manual_seed(0)
    model = classic.ClassicGPT()
    if variant == "target":
        for block in model.blocks:
            block.mlp.__class__ = Mlp
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
