"""The head is initialised with another gain, far from where it shows."""

import torch
from torch import nn

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, parameter

ORIGIN = Truth((parameter("head.weight"),), ("parameter",), step=0)


def initialise(module):
    if isinstance(module, nn.Linear):
        gain = 0.5 if module.out_features == 64 and module.in_features == 32 and initialise.small else 1.0
        nn.init.xavier_uniform_(module.weight, gain=gain)


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    initialise.small = False
    model.blocks.apply(initialise)
    initialise.small = variant == "target"
    model.head.apply(initialise)
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
