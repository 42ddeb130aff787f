"""The same model inside a wrapper, with a dropout of zero."""

import torch
from torch import nn

from bench.zoo.models.classic import ClassicGPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs):
        return self.module(*inputs)


def main(variant):
    torch.manual_seed(0)
    model = ClassicGPT()
    if variant == "target":
        model = Wrapper(model)
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
