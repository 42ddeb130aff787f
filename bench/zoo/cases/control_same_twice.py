"""The same script twice."""

import torch

from bench.zoo.models.gpt import GPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True
VERDICTS = ("identical",)


def main(variant):
    torch.manual_seed(0)
    return train(GPT(), token_batches(3), clip=1.0)


if __name__ == "__main__":
    run(main)
