"""A constructor draws one layer's weights with another deviation."""

import torch
from torch import nn

from bench.zoo.models import classic
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, parameter

ORIGIN = Truth((parameter("blocks.1.mlp.up.weight"),), ("parameter",), step=0, chain=("std=0.03",))


def start(layer, factor):
    with torch.no_grad():
        nn.init.normal_(layer.weight, std=0.02 * factor)


def main(variant):
    torch.manual_seed(0)
    model = classic.ClassicGPT()
    start(model.blocks[0].mlp.up, 1.0)
    start(model.blocks[1].mlp.up, 1.5 if variant == "target" else 1.0)
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
