"""AdamW parameter by parameter against all at once."""

import torch

from bench.zoo.models.classic import ClassicGPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


def main(variant):
    torch.manual_seed(0)
    model = ClassicGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=variant == "target")
    return train(model, token_batches(3), optimizer=optimizer, clip=0.5)


if __name__ == "__main__":
    run(main)
