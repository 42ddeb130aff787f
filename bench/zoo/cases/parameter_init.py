"""One projection is initialised without the scaling by depth that the reference has."""

import torch
from torch import nn

from bench.zoo.models.classic import ClassicGPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, parameter

ORIGIN = Truth(
    (parameter("blocks.1.attn.proj.weight"), call("Torch.normal_")),
    ("parameter", "semantic"),
    step=0,
    repair=(r"factor of 0\.7071068 \(1/√2\)",),
)


def main(variant):
    torch.manual_seed(0)
    model = ClassicGPT()
    depth = 1 if variant == "target" else 2
    nn.init.normal_(model.blocks[1].attn.proj.weight, std=0.1 / depth**0.5)  # origin
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
