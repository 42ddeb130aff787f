"""Decoding with a cache gives a new token the position of the one before it."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Torch.arange", ""),), ("semantic",), repair=(r"start=12 \(now 11\)",))


class GPT(gpt.GPT):
    def positions(self, past, length):
        past = past - 1 if past else 0
        return torch.arange(past, past + length)  # origin


def main(variant):
    torch.manual_seed(0)
    model = GPT() if variant == "target" else gpt.GPT()
    return gpt.generate(model.eval(), token_batches(1)[0][0], 4)[1]


if __name__ == "__main__":
    run(main)
