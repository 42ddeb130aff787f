"""AdamW's eps is 1e-6 instead of 1e-8."""

import torch

from bench.zoo.models.gpt import GPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, optimizer

ORIGIN = Truth((optimizer("AdamW"),), ("semantic",), step=0, repair=("eps=1e-08",))


def main(variant):
    torch.manual_seed(0)
    model = GPT()
    eps = 1e-6 if variant == "target" else 1e-8
    return train(model, token_batches(3), optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2, eps=eps))


if __name__ == "__main__":
    run(main)
