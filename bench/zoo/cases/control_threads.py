"""One thread against two."""

import torch

from bench.zoo.models.classic import ClassicGPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


def main(variant):
    torch.set_num_threads(2 if variant == "target" else 1)
    torch.manual_seed(0)
    return train(ClassicGPT(dim=64), token_batches(2, batch=8, length=32))


if __name__ == "__main__":
    run(main)
