"""One dropout has another rate."""

import torch

from bench.zoo.models.classic import ClassicGPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, module

PATH = "blocks.1.drop"
ORIGIN = Truth(
    (module(PATH, "Dropout"), call("Functional.dropout", PATH, marker=None)), ("semantic",), step=0, repair=("p=0.1 ",)
)


def main(variant):
    torch.manual_seed(0)
    model = ClassicGPT(dropout=0.1)
    if variant == "target":
        model.blocks[1].drop.p = 0.2
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
