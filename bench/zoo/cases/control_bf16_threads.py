"""A whole model in bf16, on one thread against two."""

import torch

from bench.zoo.models.gpt import GPT, Config
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


def main(variant):
    torch.set_num_threads(2 if variant == "target" else 1)
    torch.manual_seed(0)
    return train(GPT(Config(dim=64)).to(torch.bfloat16), token_batches(2, batch=8, length=32), clip=1.0)


if __name__ == "__main__":
    run(main)
